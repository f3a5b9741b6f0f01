"""Splits of the input, and the documents of their rows.

A split is a range of files that their sizes alone decide. Any process can begin with any split. All
splits in order are all rows, once, in input order, whatever the number of workers.
"""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from ..config.checks import kind_of_rows
from ..config.grammar import Carried
from ..config.options import BuildConfig
from ..schemas.columns import WHOLE
from ..schemas.views import numpy_values
from ..support.errors import ConfigError, InputError
from .types import Batch, Ids, Piece, Render, Rows, Source, Split, Text, format_of, sides_of
from .values import ANY, GROUP, TEXT, Kind, Problem, Problems, Raw, is_number, numbers, one_array

SPLIT_BYTES = 16_000_000
_LABELS = ("labels", "completion_mask", "assistant_masks", "loss_mask")
"""Columns beside token ids that say what is trained."""


def splits(sources: Sequence[Source], size: int = SPLIT_BYTES) -> list[Split]:
    """Splits of about `size` bytes; a file that cannot be cut is one piece."""
    made, pending, filled = list[Split](), list[Piece](), 0
    for source in sources:
        cut = format_of(source.format).cut
        places = [0] if cut is None or source.compression else cut(source.ready(), size)
        share = source.bytes // len(places)
        for begin, end in zip(places, [*places[1:], -1], strict=True):
            if pending and filled + share > size:
                made.append(tuple(pending))
                pending, filled = [], 0
            pending.append(Piece(source.number, begin, end))
            filled += share
    return [*made, tuple(pending)] if pending else made


def read(
    split: Split,
    sources: Sequence[Source],
    *,
    skips: bool = False,
    left: dict[int | None, int] | None = None,
    render: Render | None = None,
) -> Iterator[Batch]:
    """Documents of the rows of a split, in order.

    skips: bad rows are counted, else the first is an error. left: rows that may still be read, of
    all (None) and by entry; reduced as rows are read. render: of chats and pieces. Raises
    InputError with file and row.
    """
    for piece in split:
        source, before = sources[piece.source], 0  # rows of this piece that were read
        rows = _rows(source, piece.begin, piece.end)
        for raw in _limited(rows, source.entry, left) if left else rows:
            batch = documents_of(raw, source, render)
            if batch.problems and not skips:
                raise _bad_row(source, piece, before, batch.problems)
            yield batch
            before += batch.rows
        check_unchanged(source)


def _limited(rows: Iterator[Raw], entry: int, left: dict[int | None, int]) -> Iterator[Raw]:
    """The rows of an entry that may still be read. left: see `read`."""
    keys = [key for key in (None, entry) if key in left]
    while all(left[key] for key in keys) and (raw := next(rows, None)) is not None:
        most = min([len(raw.table), *(left[key] for key in keys)])
        left.update({key: left[key] - most for key in keys})
        bad = {row: problem for row, problem in raw.problems.items() if row < most}
        yield raw._replace(table=raw.table.slice(0, most), problems=bad)


def _rows(source: Source, begin: int, end: int) -> Iterator[Raw]:
    return format_of(source.format).read(source.ready(), begin, end, columns_of(source))


def _bad_row(
    source: Source, piece: Piece, before: int, problems: Mapping[int, Problem]
) -> InputError:
    """The error about the first bad row, whose number in the file is counted now.

    before: rows of the piece that were read. problems: by row after those.
    """
    check_unchanged(source)
    row, problem = min(problems.items())
    row += before
    if piece.begin:
        row += sum(len(raw.table) for raw in _rows(source, 0, piece.begin))
    line = format_of(source.format).line_of(source, row)
    place = f"{source.name} row {row}" + (f" (line {line})" if line else "")
    return InputError(f"{place}: {problem.detail}; fix it, or skip such rows with --on-error skip")


def check_unchanged(source: Source) -> None:
    """Raise InputError if a file is not the one that was digested."""
    if source.state and state_of(source.paths) != source.state:
        raise InputError(f"{source.name} has changed since the build began; build again")


def state_of(paths: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Size and time of the last change of files; nothing for those that are gone."""
    facts = [path.stat() for path in map(Path, paths) if path.exists()]
    return tuple((each.st_size, each.st_mtime_ns) for each in facts)


def checked(source: Source, config: BuildConfig) -> dict[str, Any]:
    """The kind of rows of a source, `rows`, and the types of carried columns, `carried`.

    Its first rows say them; nothing if it has none. Raises InputError if they lack a column that is
    read.
    """
    carried = [Carried.parse(each) for each in config.carry]
    source = replace(source, carried={each.name: ANY for each in carried})
    first = next((raw for raw in _rows(source, 0, -1) if len(raw.table)), None)
    if first is None:
        return {}
    table, names = first.table, first.names
    if not isinstance(source.rows, Text):
        from .other_rows import known_rows

        source = replace(source, rows=known_rows(source.rows, names, table, source.name))
    columns = columns_of(source)
    is_damaged = any(problem.reason != "null" for problem in first.problems.values())
    for name, kind in columns.items():
        if names.count(name) > 1:
            raise InputError(f"{source.name} has more than one column {name!r}; rename one")
        is_known = name in names or kind.is_beside or is_damaged
        if not is_known and table[name].null_count == len(table):
            option = "ids" if isinstance(source.rows, Ids) else kind_of_rows(config)
            option = "group" if name == config.group else option
            option = "carry" if name in source.carried else option
            has = f"it has {', '.join(names) or 'none'}; name one with --{option}"
            raise InputError(f"{source.name} has no column {name!r}; {has}")
    if isinstance(source.rows, Ids):
        _check_labels(source, source.rows, names, columns)
    kinds = {each.name: _carried(source, each, table[each.name]) for each in carried}
    return {"rows": source.rows, "carried": kinds}


def _check_labels(
    source: Source, rows: Ids, names: Sequence[str], columns: Mapping[str, Kind]
) -> None:
    """Raise InputError for labels beside token ids that are not read. names: of all columns."""
    labels = [name for name in _LABELS if name in names and name not in columns]
    if labels and not rows.labels:
        raise InputError(
            f"{source.name} has {labels[0]!r} beside its token ids, and every token would be "
            f"trained; give --ids {rows.column},{labels[0]}, or remove the column"
        )


def _carried(source: Source, asked: Carried, column: Any) -> Kind:
    """The kind of a carried column, as it is in the first rows."""
    found = column.type
    kind = getattr(found, "value_type", found)
    is_list = kind is not found
    if not is_number(kind) or (is_list and not isinstance(source.rows, Ids)):
        raise InputError(
            f"{source.name} has {found} in {asked.name!r}, expected numbers, or lists beside --ids"
        )
    stored = {"bool": "int8", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
    same = "float32" if pa.types.is_floating(kind) else str(kind)
    return numbers(asked.type or stored.get(same, same), "bad_carry", is_list=is_list)


def template_parts(template: str) -> list[tuple[str, str | None]]:
    """Literal texts of a template, and the column after each; a name alone is a column."""
    if "{" not in template:
        return [("", template)]
    try:
        parts = [*string.Formatter().parse(template)]
    except ValueError as error:
        raise ConfigError(f"--text {template!r} does not parse: {error}") from None
    names = ["" if how or kind else name for _, name, how, kind in parts if name is not None]
    if not names or "" in names:
        raise ConfigError(f"--text {template!r} names no column; write {{title}} for column title")
    return [(t.replace(r"\n", "\n").replace(r"\t", "\t"), name) for t, name, _, _ in parts]


def rows_of(config: BuildConfig, own: Mapping[str, Any], ids: Ids) -> Rows:
    """How the rows of a source are read. own: its own options. ids: what all rows of ids have."""
    if "ids" in own or kind_of_rows(config) != "text":
        from .other_rows import other_rows

        return other_rows(config, own.get("ids"), ids)
    template, by = str(own.get("text") or config.text or "text"), own.get("sample_by")
    template_parts(template)
    if by not in (None, "document", "paragraph", "line"):
        raise ConfigError(f"sample_by is {by!r}, expected document, paragraph or line")
    return Text(template, by or "document", config.truncate_at)


def columns_of(source: Source) -> dict[str, Kind]:
    """Columns that the rows of a source need."""
    columns: dict[str, Kind] = {}
    for rows in sides_of(source.rows):
        if isinstance(rows, Text):
            parts = template_parts(rows.template)
            columns |= {name: TEXT for _, name in parts if name is not None}
        else:
            from .other_rows import other_columns

            columns |= other_columns(rows)
    if both := columns.keys() & source.carried.keys():
        raise ConfigError(f"--carry {min(both)} is read already; name another column")
    columns |= source.carried
    if source.group is not None:
        columns.setdefault(source.group, GROUP)
    return columns


def documents_of(raw: Raw, source: Source, render: Render | None = None) -> Batch:
    """Documents of rows; one with a problem has documents of nothing. render: of chats, pieces."""
    rows, problems, columns = source.rows, dict(raw.problems), columns_of(source)
    unread = [n for n in raw.names if n not in columns or columns[n].reason == "named"]
    if isinstance(rows, Text):
        table = without(raw.table, np.arange(len(raw.table)), problems)
        made, facts = of_text(table, rows)
    else:
        from .other_rows import other_documents

        if isinstance(rows, Ids):  # as each file may have other columns
            _check_labels(source, rows, raw.names, columns)
        table, made, facts = other_documents(raw.table, source, columns, problems, render)
    for name, kind in source.carried.items():
        if not pa.types.is_list(kind.type):
            values = one_array(table[name]).fill_null(0)
            made[name] = numpy_values(values)[made["row"]]
    if source.group is not None:
        made["group"] = _hashes(table[source.group])[made["row"]]
    facts["unread"] = (*unread, *facts.get("unread", ()))
    documents = pa.table({"row": made.pop("row"), "part": made.pop("part"), **made})
    return Batch(
        source=source.number, rows=len(table), documents=documents, problems=problems, **facts
    )


def whole(count: int) -> dict[str, Any]:
    """Columns of documents that are whole rows."""
    return {"row": np.arange(count, dtype=np.int32), "part": np.full(count, WHOLE, np.int32)}


def without(values: Any, rows: NDArray[Any], problems: Problems) -> Any:
    """Values with nulls in rows that have a problem. rows: of the values."""
    if not problems:
        return values
    return values.take(pa.array(np.arange(len(rows)), mask=np.isin(rows, [*problems])))


def of_text(table: pa.Table, rows: Text) -> tuple[dict[str, Any], dict[str, Any]]:
    """Documents of rows of text, and fields of their `Batch`."""
    text, facts = _text(table, rows), dict[str, Any]()
    if rows.truncate_at is not None:
        text, facts["cut"] = _cut_text(text, rows.truncate_at)
    return {**whole(len(table)), "text": text}, facts


def _text(table: pa.Table, rows: Text) -> Any:
    """Text of each row, large_string; null where a row has none."""
    if "{" not in rows.template:
        return one_array(table[rows.template])
    pieces: list[Any] = []
    for literal, name in template_parts(rows.template):
        pieces.append(pa.scalar(literal, pa.large_string()))
        pieces += [one_array(table[name])] if name is not None else []
    nothing = pa.scalar("", pa.large_string())
    return pc.binary_join_element_wise(*pieces, nothing, null_handling="emit_null")


def _cut_text(text: Any, pattern: str) -> tuple[Any, tuple[int, int]]:
    """Text up to the first match; number of documents and characters that were cut."""
    split, texts = re.compile(pattern).split, text.to_pylist()
    kept = [each and split(each, 1)[0] for each in texts]
    cut = [len(a) - len(b) for a, b in zip(texts, kept, strict=True) if a != b]
    return pa.array(kept, text.type), (len(cut), sum(cut))


def _hashes(column: Any) -> Any:
    """A hash of the text of each row's group; 0 without one."""
    texts = [None if value is None else GROUP.read(value) for value in column.to_pylist()]
    hashes = [0 if text is None else xxhash.xxh3_64_intdigest(text.encode()) >> 1 for text in texts]
    return np.array(hashes, np.int64)
