"""Invariants of packed datasets without a manifest, saved with `save_to_disk` by any packer.

    tokens and cu_seqlens              names of packprep
    input_ids and seq_lengths          names of TRL: a length per segment instead of boundaries

Both are converted to the columns of packprep, and the same checks run on them.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from packprep.inspect.shard_files import Checked, OnRead, check_in_threads, opener, read_shard
from packprep.inspect.verdict import Verdict
from packprep.schemas.canonical import parse_json
from packprep.schemas.columns import HF_NAMES, STANDARD_COLUMNS, Column
from packprep.schemas.errors import FormatError
from packprep.schemas.files import MANIFEST, inside, saved_files
from packprep.schemas.findings import Finding
from packprep.schemas.names import to_boundaries
from packprep.schemas.validate import sound_parts
from packprep.schemas.views import list_view
from packprep.support.errors import InputError
from packprep.support.progress import Progress

_MASKS = (
    "completion_mask",
    "assistant_masks",
    "loss_mask",
)  # one value per token; their meaning is up to the trainer
_LARGEST = 2**31 - 1


def verify_unsigned(
    directory: Path, verdict: Verdict, vocab_size: int | None, progress: Progress
) -> None:
    """Check all Arrow files of a saved Dataset or DatasetDict.

    Raises InputError if `directory` is neither, or has no boundaries to check.
    """
    report = directory / "report.json"
    if report.exists() and b'"report_version"' in report.read_bytes():
        what = (
            "it is missing, but report.json shows that packprep built this; restore it or "
            "build again"
        )
        verdict.findings.add(Finding(kind="manifest", file=MANIFEST, what=what))
    files = [file for folder in _folders(directory) for file in saved_files(folder)]
    missing = [file for file in files if not file.is_file()]
    for file in missing:
        name = file.relative_to(directory).as_posix()
        what = "it is missing; state.json lists it"
        verdict.findings.add(Finding(kind="file", file=name, what=what))
    present = [file for file in files if file not in missing]

    def check(file: Path, on_read: OnRead) -> Checked:
        return _check_file(file, file.relative_to(directory).as_posix(), vocab_size, on_read)

    for result in check_in_threads(
        check, present, sum(file.stat().st_size for file in present), progress
    ):
        verdict.findings.update(result.findings)
        verdict.files += 1
        verdict.bytes += result.bytes
        verdict.packs += result.packs
        verdict.segments += result.segments
        verdict.tokens += result.tokens
    verdict.not_checked.append("digests, documents, BOS, EOS and the ledger: there is no manifest")
    if vocab_size is None:
        verdict.not_checked.append("ids against the vocabulary; give --vocab-size to check them")


def _folders(directory: Path) -> list[Path]:
    """The folders with a state.json."""
    if (directory / "state.json").exists():
        return [directory]
    try:
        splits = parse_json((directory / "dataset_dict.json").read_bytes())["splits"]
        return [inside(directory, split, "dataset_dict.json") for split in splits]
    except OSError:
        what = (
            "is not a directory"
            if not directory.is_dir()
            else f"has neither {MANIFEST} nor state.json"
        )
        raise InputError(
            f"{directory} {what}; expected an output or export of packprep, or of save_to_disk"
        ) from None
    except FormatError:
        raise
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{directory / 'dataset_dict.json'} lists no splits; expected what save_to_disk writes"
        ) from None


def _check_file(path: Path, name: str, vocab_size: int | None, on_read: OnRead) -> Checked:
    checked = Checked()
    columns: list[Column] = []

    def schema(stored: pa.Schema) -> None:
        columns.extend(_columns(stored, name))

    def take(batch: pa.RecordBatch) -> None:
        for view in sound_parts(
            _as_standard(batch, columns, name),
            columns,
            max_length=_LARGEST,
            vocab_size=vocab_size or _LARGEST,
            where=name,
            first_pack=checked.packs,
            findings=checked.findings,
        ):
            checked.count(view)

    read_shard(opener(path), name, checked, on_read, schema, take)
    return checked


def _columns(schema: pa.Schema, where: str) -> list[Column]:
    """The columns to check, with the names of packprep.

    Raises FormatError if boundaries are missing.
    """
    stored = {field.name for field in schema if _is_list_of_integers(field.type)}
    names = {name for name in STANDARD_COLUMNS if _stored(name, stored) in stored}
    if not {"tokens", "cu_seqlens"} <= names:
        raise FormatError(
            f"{where} has the columns {', '.join(schema.names)}; expected tokens and cu_seqlens, "
            "or input_ids and seq_lengths as TRL packs them, lists of integers"
        )
    masks = [Column(name=name, kind="token", dtype="int32") for name in _MASKS if name in stored]
    return [column for name, column in STANDARD_COLUMNS.items() if name in names] + masks


def _stored(name: str, present: set[str]) -> str:
    """Name of a column in the file, whose lists of integers are `present`."""
    return (
        HF_NAMES.get(name, name)
        if set(HF_NAMES.values()) <= present and not {"tokens", "cu_seqlens"} <= present
        else name
    )


def _is_list_of_integers(kind: pa.DataType) -> bool:
    if not isinstance(kind, pa.ListType | pa.LargeListType):
        return False
    return pa.types.is_integer(kind.value_type)


def _as_standard(batch: pa.RecordBatch, columns: list[Column], where: str) -> pa.RecordBatch:
    """The batch with the names and types of packprep.

    Raises FormatError for nulls and for numbers that do not fit.
    """
    present = set(batch.schema.names)
    arrays = []
    for column in columns:
        stored = _stored(column.name, present)
        view = list_view(batch, stored, where)
        if stored == HF_NAMES["cu_seqlens"]:
            view = to_boundaries(view)
        values, limits = (
            view.values[view.offsets[0] : view.offsets[-1]],
            np.iinfo(column.numpy_dtype),
        )
        if len(values) and (values.min() < limits.min or values.max() > limits.max):
            raise FormatError(
                f"{where} column {stored} has numbers that do not fit in {column.dtype}"
            )
        offsets = (view.offsets - view.offsets[0]).astype(np.int32)
        arrays.append(
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(values.astype(column.numpy_dtype)))
        )
    return pa.record_batch(arrays, names=[column.name for column in columns])
