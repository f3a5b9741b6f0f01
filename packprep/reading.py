"""Rows of a source as text: every format comes out as Arrow tables with the same columns.

text     string, the document; null where the row has none to use
problem  string, null or "reason: detail" (null, not_text, bad_json, bad_utf8)
group    string, only with `group_column`

Sources are opened through `datasets` in streaming form: nothing is copied to disk, nothing is cached in the user's
home (but hub datasets, whose cache is theirs), and `limit` reads no further than it must.
"""

import glob
import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from packprep.config import BuildConfig
from packprep.errors import ConfigError, InputError
from packprep.sources import Source, open_hub

ROWS_PER_TABLE = 512  # a table of long documents must not be large: 512 books are 100 MB


def read_rows(source: Source, config: BuildConfig, scratch: Path) -> Iterator[pa.Table]:
    """Tables of `text`, `problem` and perhaps `group`, in row order. Raises InputError naming the source."""
    names = text_columns(config)
    wanted = [*names, *([config.group_column] if config.group_column else [])]
    first = True
    try:
        for table in _open(source, wanted, config, scratch).iter(batch_size=ROWS_PER_TABLE):
            if first:
                _check_columns(source, table, wanted)
                first = False
            yield as_text(table, names, config)
    except InputError:
        raise
    except Exception as error:  # what the readers of each format raise is theirs; the user needs the file's name
        raise InputError(f"{source.name} {_reason(error, source)}") from None


def text_columns(config: BuildConfig) -> list[str]:
    """The columns that make the text, in the order of the template."""
    if config.text_template is None:
        return [config.text_column]
    try:
        fields = [name for _, name, _, _ in string.Formatter().parse(config.text_template) if name is not None]
    except ValueError as error:
        raise ConfigError(f"text_template {config.text_template!r} does not parse: {error}") from None
    if not fields or "" in fields:
        raise ConfigError(f"text_template {config.text_template!r} names no column; write {{title}} for column title")
    return list(dict.fromkeys(fields))


def _open(source: Source, columns: Sequence[str], config: BuildConfig, scratch: Path) -> Any:
    """The rows of a source as a `datasets` object in Arrow format."""
    import datasets

    if source.kind == "hub":
        return open_hub(source.name, config).with_format("arrow")
    if source.kind == "saved":
        return datasets.load_from_disk(str(source.path)).with_format("arrow")
    path = _unpacked(source, scratch)
    options: dict[str, Any] = {"data_files": [glob.escape(str(path))], "cache_dir": str(scratch)}
    if source.kind == "json":
        from packprep.jsonl import JsonRows

        rows = JsonRows(columns=tuple(columns), **options).as_streaming_dataset(split="train")
        return rows.with_format("arrow")
    if source.kind == "text":
        options["sample_by"] = config.sample_by
    elif source.kind == "csv":
        # All text: a column of digits stays digits, and "NA" or "null" is a word.
        header = _csv_header(source, path)
        features = datasets.Features({name: datasets.Value("string") for name in header})
        options |= {"sep": _separator(source), "keep_default_na": False, "features": features}
    rows = datasets.load_dataset(source.kind, split="train", streaming=True, **options)
    return rows.with_format("arrow")


def _unpacked(source: Source, scratch: Path) -> Path:
    """The source's path; .parquet.gz and the like, which are read from both ends, are unpacked into `scratch`."""
    assert source.path is not None
    if not (source.compressed and source.kind in ("parquet", "arrow")):
        return source.path
    import shutil

    target = scratch / f"{source.sha256}.{source.suffix}"
    if not target.exists():
        with decompressed(source.path) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file)
    return target


@contextmanager
def decompressed(path: Path) -> Iterator[Any]:
    """The plain bytes of a file, as a file."""
    import fsspec

    with fsspec.open(str(path), "rb", compression={".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())) as file:
        yield file


def _separator(source: Source) -> str:
    return "\t" if source.suffix == "tsv" else ","


def _csv_header(source: Source, path: Path) -> list[str]:
    import csv
    import io

    with decompressed(path) as file:
        return next(csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=_separator(source)), [])


def _check_columns(source: Source, table: pa.Table, wanted: Sequence[str]) -> None:
    """JSON rows name their columns one by one, so there a column with no value is looked for in the first row."""
    there = table.column_names
    if source.kind == "json":
        if all(table[name].null_count < len(table) for name in wanted) or table["problem"][0].is_valid:
            return
        there = _first_keys(source)
    missing = [name for name in wanted if name not in there]
    if missing:
        option = "--messages-column" if "messages" in there else "--text-column or --text-template"
        raise InputError(f"{source.name} has no column {missing[0]!r}; it has {', '.join(there)}: choose with {option}")


def _first_keys(source: Source) -> list[str]:
    import json

    assert source.path is not None
    with decompressed(source.path) as file:
        head = file.read(1).lstrip(b"\xef\xbb\xbf")
        if head in (b"[", b""):
            rows = json.loads(head + file.read())
            return list(rows[0])
        for line in file:
            if (head + line).strip():
                try:
                    return list(json.loads(head + line))
                except ValueError:
                    return list(json.loads(head + line + file.read()))
            head = b""
    return []


def as_text(table: pa.Table, names: Sequence[str], config: BuildConfig) -> pa.Table:
    """`text`, `problem` and perhaps `group` of rows with the columns `names`."""
    count = len(table)
    problem = table["problem"].combine_chunks() if "problem" in table.column_names else pa.nulls(count, pa.string())
    columns = {}
    for name in names:
        columns[name], problem = _text_column(table[name], name, problem)
    if config.text_template is None:
        text = columns[names[0]]
    else:
        parts: list[Any] = []
        for literal, field, _, _ in string.Formatter().parse(config.text_template):
            parts += [literal] if literal else []
            parts += [columns[field]] if field is not None else []
        text = pc.binary_join_element_wise(*parts, "", null_handling="emit_null")
    missing = pc.and_(pc.is_null(text), pc.is_null(problem))
    problem = pc.if_else(missing, f"null: the row has no {' and '.join(map(repr, names))}", problem)
    arrays = {"text": pc.if_else(pc.is_valid(problem), pa.scalar(None, text.type), text), "problem": problem}
    if config.group_column is not None:
        arrays["group"] = table[config.group_column].combine_chunks().cast(pa.string())
    return pa.table(arrays)


def _text_column(column: pa.ChunkedArray, name: str, problem: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The column as a string array of valid UTF-8, and `problem` with what was wrong filled in."""
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        if str(array.type) == "string_view":
            array = array.cast(pa.large_string())
        else:
            found = pc.and_(pc.is_valid(array), pc.is_null(problem))
            return pa.nulls(len(array), pa.string()), pc.if_else(found, f"not_text: {name!r} is {array.type}", problem)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        good = pa.array([_is_utf8(value) for value in array.cast(pa.large_binary())])
        problem = pc.if_else(pc.and_(pc.invert(good), pc.is_null(problem)), f"bad_utf8: {name!r} is not UTF-8", problem)
        array = pc.if_else(good, array, pa.scalar(None, array.type))
    return array, problem


def _is_utf8(value: Any) -> bool:
    try:
        value.as_py() and value.as_py().decode()
    except UnicodeDecodeError:
        return False
    return True


def _reason(error: Exception, source: Source) -> str:
    text = " ".join(str(error).split())[:300]
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 at byte {error.start}: {error.reason}"
    if isinstance(error, EOFError) or "end-of-stream" in text:
        return "is cut off: the compressed data ends early; fetch the file again"
    if source.compressed and ("gzip" in text.lower() or "zstd" in text.lower()):
        return f"does not decompress: {text}"
    return f"cannot be read as {source.kind}: {text or type(error).__name__}"
