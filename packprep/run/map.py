"""Packing in Python: a `datasets.Dataset`, or a function for its `map`.

The rows of a batch are written to a file in the folder for temporary files, and built: the packs of
a batch are those that `build` writes of its rows, because `build` makes them. A batch of 1,000
rows, the default of `map`, leaves packs half empty: give `batch_size=None`.
"""

import re
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from ..config.options import BuildConfig
from ..read.values import one_array
from ..schemas.files import digest_of
from ..schemas.manifest import packs
from ..support.errors import ConfigError, InputError
from ..support.progress import Silent
from .build import build
from .job import tokenizer_of

_SMALL_BATCH = 10_000  # rows; a smaller batch causes a warning
_OF_BUILD = {"sources", "output", "store", "overwrite", "shard_size", "weights", "holdout", "after"}
_OF_BUILD |= {"executor", "part"}


class TokenizeAndPack:
    """A picklable function for `dataset.map` with batches.

    Call `dataset.map(fn, batched=True, batch_size=None, remove_columns=dataset.column_names)`.

    tokenizer, options: those of `BuildConfig` but for files, several sources and splits. With
    `with_indices=True` document_ids are rows of the dataset, otherwise of the batch. It works on
    plain datasets and on those of format arrow. If the batch is the whole dataset, the packs are
    those that `build` writes. Each batch is packed by itself, so the packs of smaller ones depend
    on batch_size and num_proc; one of fewer than 10,000 rows causes one warning.
    """

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        if wrong := next((name for name in options if name in _OF_BUILD), None):
            raise ConfigError(f"{wrong} is for build: a function inside map sees one batch")
        self.options = {"tokenizer": tokenizer, **options}
        config = BuildConfig(**self.options)  # an option that is wrong is an error now
        facts = [each and each.facts() for each in tokenizer_of(config, Silent())]
        self.made_from = digest_of([version("packprep"), *facts])  # `map` keeps results by it
        self.warned = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "warned": False}  # `map` makes its fingerprint of this

    def __call__(self, batch: Any, indices: Sequence[int] | None = None) -> Any:
        """Packs of one batch: a pa.Table for a table, a dict of lists for a dict of lists.

        Raises InputError for rows that make no documents, as `build`.
        """
        if isinstance(batch, pa.Table):
            return self._packed(batch, indices)
        if any(isinstance(values, str) for values in batch.values()):
            raise InputError("this is a row, and no batch; give map batched=True, batch_size=None")
        try:
            table = pa.table({name: pa.array(values) for name, values in batch.items()})
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(f"the columns {', '.join(batch)} make no table: {error}") from None
        return self._packed(table, indices).to_pydict()

    def _packed(self, table: pa.Table, indices: Sequence[int] | None) -> pa.Table:
        if len(table) < _SMALL_BATCH and not self.warned:
            self.warned = True
            what = f"packing a batch of {len(table):,} rows by itself; small batches leave packs"
            warnings.warn(f"{what} half empty, so give map batch_size=None", stacklevel=3)
        numbers = np.arange(len(table)) if indices is None else np.asarray(indices, np.int64)
        with TemporaryDirectory(prefix="packprep-") as folder:
            path, output = Path(folder) / "rows.arrow", Path(folder) / "packed"
            with pa.ipc.new_file(str(path), table.schema) as file:
                file.write_table(table)
            config = BuildConfig(sources=(str(path),), output=str(output), **self.options)
            try:
                made = [each.batch for each in packs(build(config), check=False)]
            except InputError as error:
                named = re.sub(
                    rf"{path} row (\d+)", lambda match: f"row {numbers[int(match[1])]}", str(error)
                )
                raise InputError(named.replace(str(path), "the dataset")) from None
        return _renumbered(pa.Table.from_batches(made).replace_schema_metadata(None), numbers)


def _renumbered(made: pa.Table, numbers: Any) -> pa.Table:
    """The packs with numbers of rows of the dataset in place of those of the batch."""
    rows = np.append(numbers, -1)  # -1 is of a filler pack
    for name in {"document_ids", "pair_ids"} & {*made.column_names}:
        column: Any = one_array(made[name])
        ids = rows[column.values.to_numpy()].astype(column.values.type.to_pandas_dtype())
        lists = type(column).from_arrays(column.offsets, pa.array(ids))
        made = made.set_column(made.column_names.index(name), name, lists.cast(column.type))
    return made


def pack_dataset(dataset: Any, tokenizer: Any, **options: Any) -> Any:
    """Pack a `datasets.Dataset`, as `build` packs its rows, into a new Dataset.

    tokenizer, options: as for `TokenizeAndPack`. The columns are those of a shard; document_ids are
    rows of `dataset`. The splits of a DatasetDict are packed one by one. A stream is read into
    memory first. The new Dataset has the format of `dataset` (numpy, torch, ...), but not its
    transform, which works on rows. Example:
    packed = pack_dataset(dataset, "tokenizer.json", max_length=8192, strategy="best_fit")
    """
    import datasets

    function = TokenizeAndPack(tokenizer, **options)
    function.warned = True  # the batch is the whole dataset
    if not isinstance(dataset, dict):
        return _packed_split(dataset, function)
    packed = datasets.DatasetDict()
    for split, rows in dataset.items():
        try:
            packed[split] = _packed_split(rows, function)
        except InputError as error:
            raise InputError(f"split {split}: {error}") from None
    return packed


def _packed_split(dataset: Any, function: TokenizeAndPack) -> Any:
    import datasets

    if isinstance(dataset, datasets.IterableDataset):
        rows = [*dataset.with_format(None)]
        names = dict.fromkeys(name for row in rows for name in row)  # a row may lack some
        columns = {name: [row.get(name) for row in rows] for name in names}
        dataset = datasets.Dataset.from_dict(columns)
    if not len(dataset):
        raise InputError("the dataset holds no rows; expected at least one document")
    kind, more = dataset.format["type"], dataset.format["format_kwargs"]
    settings: Any = {"batched": True, "batch_size": None, "with_indices": True}
    settings["remove_columns"] = dataset.column_names
    packed = dataset.with_format("arrow").map(function, **settings)
    return packed.with_format(kind, **more) if kind != "custom" else packed.with_format(None)
