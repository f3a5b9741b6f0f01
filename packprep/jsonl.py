"""JSON rows through `datasets`, parsing only the columns a build uses.

The JSON builder of `datasets` fixes the type of every column by the first 10 MB of a file: a later row with one more
key stops it, and a number in the text column becomes text. Here other columns may differ from row to row, a value
that is not text stays a finding, and the row that is wrong is known.

Each table has the asked columns as strings (null where the row has none) and `problem`, null or "reason: detail".
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.json as paj

BLOCK_BYTES = 8 << 20


@dataclasses.dataclass
class JsonRowsConfig(datasets.BuilderConfig):  # type: ignore[misc]
    """columns: names of the columns to read."""

    columns: tuple[str, ...] = ("text",)


class JsonRows(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    """JSON lines, an array of objects, or a single object, plain or compressed."""

    BUILDER_CONFIG_CLASS = JsonRowsConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo()

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        dl_manager.download_config.extract_on_the_fly = True
        files = dl_manager.download_and_extract(self.config.data_files)["train"]
        return [datasets.SplitGenerator("train", {"files": [dl_manager.iter_files(file) for file in files]})]

    def _generate_tables(self, files: Iterable[Iterable[str]]) -> Iterator[tuple[Any, pa.Table]]:
        for number, iterable in enumerate(files):
            for path in iterable:
                with open(path, "rb") as file:  # noqa: PTH123 - `datasets` replaces open here to read compressed files
                    for block_number, table in enumerate(_tables(file, self.config.columns)):
                        yield datasets.builder.Key(number, block_number), table


def _tables(file: Any, columns: Sequence[str]) -> Iterator[pa.Table]:
    block = file.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf")
    if block.lstrip()[:1] == b"[":
        yield from _array(block + file.read(), columns)
        return
    first = True
    while block:
        if not block.endswith(b"\n"):
            block += file.readline()
        table = _parse(block, columns)
        if first and table is None and (whole := _single_object(block, file)) is not None:
            yield _from_values([whole], columns)
            return
        yield _from_lines(block, columns) if table is None else table
        first = False
        block = file.read(BLOCK_BYTES)


def _parse(block: bytes, columns: Sequence[str]) -> pa.Table | None:
    """The block by the compiled parser, or None when some row needs a closer look."""
    schema = pa.schema([(name, pa.string()) for name in columns])
    try:
        table = paj.read_json(
            pa.BufferReader(block),
            read_options=paj.ReadOptions(use_threads=False, block_size=len(block)),
            parse_options=paj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        table.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return table.append_column("problem", pa.nulls(len(table), pa.string()))


def _from_lines(block: bytes, columns: Sequence[str]) -> pa.Table:
    return _from_values((line for line in block.split(b"\n") if line.strip()), columns)


def _array(data: bytes, columns: Sequence[str]) -> Iterator[pa.Table]:
    try:
        values = json.loads(data)
    except ValueError as error:
        yield _from_values([ValueError(f"the array does not parse: {error}")], columns)
        return
    for start in range(0, len(values), 1000):
        yield _from_values(values[start : start + 1000], columns)


def _single_object(block: bytes, file: Any) -> dict[str, Any] | None:
    """A JSON object written over several lines, which is a file of one row."""
    if block.lstrip()[:1] != b"{" or block.split(b"\n", 1)[0].rstrip().endswith(b"}"):
        return None
    position = len(block)
    try:
        loaded = json.loads(block + file.read())
        return loaded if isinstance(loaded, dict) else None
    except ValueError:
        file.seek(position)
        return None


def _from_values(rows: Iterable[Any], columns: Sequence[str]) -> pa.Table:
    """Rows given as JSON bytes, parsed values, or the error that stands in for one."""
    values: dict[str, list[str | None]] = {name: [] for name in columns}
    problems = []
    for row in rows:
        problem = None
        try:
            parsed = json.loads(row, object_pairs_hook=_Pairs) if isinstance(row, bytes) else row
            if isinstance(parsed, Exception):
                raise parsed
            if not isinstance(parsed, dict):
                problem, parsed = f"bad_json: it is a {type(parsed).__name__}, expected an object", {}
        except UnicodeDecodeError as error:
            problem, parsed = f"bad_utf8: byte {error.start} of the row is not UTF-8", {}
        except (ValueError, RecursionError) as error:
            problem, parsed = f"bad_json: {error}", {}
        for name in columns:
            value, problem = _text(parsed, name, problem)
            values[name].append(value)
        problems.append(problem)
    arrays = [pa.array(values[name], pa.string()) for name in columns]
    return pa.table([*arrays, pa.array(problems, pa.string())], names=[*columns, "problem"])


class _Pairs(dict[str, Any]):
    """An object that remembers which keys it was given twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.twice = {key for key, _ in pairs} if len(self) < len(pairs) else set()
        if self.twice:
            seen = [key for key, _ in pairs]
            self.twice = {key for key in self.twice if seen.count(key) > 1}


def _text(row: dict[str, Any], name: str, problem: str | None) -> tuple[str | None, str | None]:
    value = row.get(name)
    if name in getattr(row, "twice", ()):
        return None, problem or f"bad_json: the key {name!r} stands twice"
    if value is None:
        return None, problem
    if not isinstance(value, str):
        return None, problem or f"not_text: {name!r} is a {type(value).__name__}"
    try:
        value.encode()
    except UnicodeEncodeError:
        return None, problem or f"bad_utf8: {name!r} has a lone surrogate"
    return value, problem
