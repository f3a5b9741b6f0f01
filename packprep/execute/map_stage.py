"""Packing in Python: the stages of a build on a `datasets.Dataset`, or as a function for `map`.

The window is the batch that `map` passes. A batch of 1,000 rows, the default of `map`, costs 0.3 %
of utilization at 4,096 tokens and up to 9 % at 131,072; give `batch_size=None`. `packprep build`
packs a billion tokens together.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from packprep.chat.build_tokenizer import (
    ChatTokenizer,
    check_continuation,
    load_build_tokenizer,
)
from packprep.config.aliases import respelled
from packprep.config.build_config import BuildConfig, check_keys
from packprep.config.grammar.spellings import say
from packprep.config.stages import Command, Reading, Running, Writing, options_in
from packprep.engines.parity import EngineChoice, choose_engine
from packprep.output.shard_writer import ShardLayout, iterate_batches
from packprep.schemas.columns import Column
from packprep.sources.carried import carried_types
from packprep.sources.formats.row_plan import RowPlan, row_plan
from packprep.sources.reading import make_finder
from packprep.sources.row_text import as_rows
from packprep.support.errors import ConfigError, InputError
from packprep.support.problems import problem_at
from packprep.tokens.encode import Encoder
from packprep.windows.documents import Documents, carried_columns, document_rows, join_documents
from packprep.windows.planner import plan_window
from packprep.windows.segments import TooLongError
from packprep.windows.specs import window_seed

_SMALL_BATCH = 10_000  # documents; a smaller batch causes a warning
_NOT_IN_MAP = options_in(Reading, Writing, Running, Command) - {
    *("columns", "names", "token_type")
} | {"sample_by", "skip_rows"}


class TokenizeAndPack:
    """A picklable function for `dataset.map` with batches.

    Call `dataset.map(fn, batched=True, batch_size=None, remove_columns=dataset.column_names)`.

    tokenizer: a path, a `tokenizers.Tokenizer` or a transformers fast tokenizer; None if rows are
    token ids and vocab_size is given. options: the options of `BuildConfig` for reading columns,
    tokens, packing and writing columns. With `with_indices=True` document_ids are rows of the
    dataset, otherwise rows of the batch. Works on plain and Arrow-format datasets. If the batch is
    the whole dataset, the packs are those that `build` writes.

    Each batch is packed by itself. A small batch leaves packs half empty, and the packs depend on
    batch_size and num_proc. A batch of fewer than 10,000 rows causes one warning.
    """

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        check_keys(options, "TokenizeAndPack")
        options = respelled({"tokenizer": tokenizer} | options, say)
        tokenizer = options.pop("tokenizer")
        for key in options:
            if key in _NOT_IN_MAP:
                raise ConfigError(
                    f"{key} is an option of packprep.build only; a function inside map sees one "
                    "batch"
                )
        self.config = BuildConfig(**options)
        named = replace(self.config, tokenizer=tokenizer)
        self.tokenizer = load_build_tokenizer(named.tokenizing, named.parsing, named.token_type)
        check_continuation(self.config.cutting, self.tokenizer)
        self.plan = row_plan(self.config.parsing)
        self._engine: EngineChoice | None = None
        self._warned = False

    def __getstate__(self) -> dict[str, object]:
        # Some engines are not picklable, nor is a compiled template; each process loads its own.
        tokenizer = self.tokenizer
        if isinstance(tokenizer, ChatTokenizer):
            tokenizer = replace(tokenizer, template=replace(tokenizer.template))
        return self.__dict__ | {"_engine": None, "_warned": False, "tokenizer": tokenizer}

    def __call__(self, batch: Any, indices: Sequence[int] | None = None) -> Any:
        """Packs of one batch: a pa.Table for a table, a dict of lists for a dict of lists."""
        arrow = isinstance(batch, pa.Table)
        table = batch if arrow else self._as_table(batch)
        ids = np.arange(len(table)) if indices is None else np.asarray(indices, np.int64)
        if len(table) < _SMALL_BATCH and not self._warned:
            self._warned = True
            warnings.warn(
                f"packing a batch of {len(table):,} documents by itself; small batches leave packs "
                "half empty, so give map batch_size=None",
                stacklevel=2,
            )
        packed = self._pack(table, ids)
        return packed if arrow else packed.to_pydict()

    def _as_table(self, batch: Mapping[str, Sequence[Any]]) -> pa.Table:
        names = _for_columns(self.plan, list(batch)).columns
        try:
            return pa.table({name: pa.array(batch[name]) for name in names})
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InputError(
                f"the columns {', '.join(names)} do not make a table: {error}"
            ) from None

    def _pack(self, table: pa.Table, ids: Any) -> pa.Table:
        config, tokenizer = self.config, self.tokenizer
        stages = config.parsing, config.tokenizing
        finder = make_finder(tokenizer, *stages)
        plan = row_plan(config.parsing, tokenizer.vocab_size, finder)
        plan = _for_columns(plan, table.column_names)
        types = {name: table[name].type for name in plan.columns}
        plan = replace(plan, carried=carried_types(types, plan, "the dataset"))
        text = as_rows(table, plan)
        bad = text["problem"].is_valid().to_numpy()
        if self.config.on_error == "stop" and bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"row {ids[row]}: {problem_at(text['problem'], row).detail}; see on_error"
            )
        if self._engine is None and "text" in text.column_names:
            self._engine = choose_engine(
                self.config.engine,
                self.tokenizer.json,
                parse_special_tokens=self.config.parses_special_tokens,
                sample=[
                    document
                    for document in text["text"].slice(0, 64).to_pylist()
                    if document is not None
                ],
            )
        encoder = Encoder(self._engine, tokenizer, *stages, config.seed, config.num_proc)
        encoded = encoder.encode(text, ids)
        if self.config.on_error == "stop" and encoded.problems:
            row, problem = min(encoded.problems.items())
            raise InputError(f"row {ids[row]}: {problem.detail}; see on_error")
        batches = encoded.table.drop_columns(["problem"]).combine_chunks().to_batches()
        rows = document_rows(batches, ids.astype(np.int64), np.zeros(len(ids), np.int32))
        documents = join_documents(batches, *rows)
        return self._packed(documents, carried_columns(batches[0].schema))

    def _packed(self, documents: Documents, carried: tuple[Column, ...]) -> pa.Table:
        layout = ShardLayout.of(
            self.config.pack_rules(),
            self.config.writing,
            self.tokenizer,
            carried,
        )
        try:
            plan = plan_window(
                documents,
                self.tokenizer,
                self.config.pack_rules(),
                window_seed(self.config.seed, 0, "train"),
            )
        except TooLongError as error:
            raise InputError(
                f"row {documents.id[error.document]} has {error.tokens:,} tokens but a pack holds "
                f"{self.config.max_length:,}; choose overflow split, truncate or drop"
            ) from None
        batches = list(iterate_batches(plan.packs, layout))
        return pa.Table.from_batches(batches, schema=layout.schema)


def _for_columns(plan: RowPlan, existing: Sequence[str]) -> RowPlan:
    """The plan for a dataset of these columns. InputError if one is missing."""
    plan = plan.found_in(existing, "the dataset")
    missing = [name for name in plan.columns if name not in existing]
    if missing:
        raise InputError(f"the dataset has no column {missing[0]!r}; it has {', '.join(existing)}")
    return plan


def pack_dataset(dataset: Any, tokenizer: Any, **options: Any) -> Any:
    """Pack a `datasets.Dataset`, as one window, into a new Dataset.

    tokenizer, options: as for `TokenizeAndPack`. The columns are those of a shard; document_ids are
    rows of `dataset`. The splits of a DatasetDict are packed one by one. An IterableDataset is
    packed when it is read, and is then in memory as a whole. The new Dataset has the format of
    `dataset` (numpy, torch, ...), but not its transform, which works on rows. Example:
    packed = pack_dataset(dataset, "tokenizer.json", max_length=8192, strategy="best_fit")
    """
    function = TokenizeAndPack(tokenizer, **options)
    function._warned = True  # the batch is the whole dataset
    if not isinstance(dataset, dict):
        return _packed(dataset, function)
    packed = {}
    for split, rows in dataset.items():
        try:
            packed[split] = _packed(rows, function)
        except InputError as error:
            raise InputError(f"split {split}: {error}") from None
    return type(dataset)(packed)


def _packed(dataset: Any, function: TokenizeAndPack) -> Any:
    """Packs of one split."""
    if dataset.column_names is None:
        rows, names = _with_known_columns(dataset.with_format(None), function.plan)
    else:
        rows, names = dataset.with_format("arrow"), dataset.column_names
        _for_columns(function.plan, names)
    packed = rows.map(
        function, batched=True, batch_size=None, with_indices=True, remove_columns=names
    )
    if hasattr(dataset, "format"):
        kind, arguments = dataset.format["type"], dataset.format["format_kwargs"]
    else:  # a stream has no public attribute for its format
        kind, arguments = getattr(dataset._formatting, "format_type", None), {}
    return (
        packed.with_format(None)
        if kind in (None, "custom")
        else packed.with_format(kind, **arguments)
    )


def _with_known_columns(stream: Any, plan: RowPlan) -> tuple[Any, list[str]]:
    """A stream of unknown columns, reduced to the columns to read, and their names.

    Rows may lack some of them.
    """
    first = next(iter(stream.take(1)), None)
    if first is None:
        raise InputError("the dataset holds no rows; expected at least one document")
    _for_columns(plan, list(first))
    # As in JSON rows, a later row may have columns of tools that the first lacks.
    names = plan.found_in(list(first), "the dataset", any_row=True).columns
    return stream.map(partial(_only, names)).select_columns(names), names


def _only(names: Sequence[str], row: Mapping[str, object]) -> dict[str, object]:
    return {name: row.get(name) for name in names}
