"""A row makes documents: what text, ids and other kinds of rows differ in.

`wanted_of` says which columns are read, `documents_of` what they become. Nothing is cast or
guessed: a value that is not what it must be is the problem of its row.
"""

import re
import string
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from ..schemas.columns import NO_LOSS, WHOLE
from ..schemas.views import ListView, list_array
from ..support.errors import ConfigError
from .formats.format import GROUP, group_text
from .types import Ids, Problem, Raw, Source, Text, Wanted

_TEXT: tuple[pa.DataType, ...] = (pa.string(),)
_NUMBERS: tuple[pa.DataType, ...] = (pa.list_(pa.int64()), pa.list_(pa.bool_()))
LIMIT = 256_000_000  # bytes of a row


def template_parts(template: str) -> list[tuple[str, str | None]]:
    """Literal texts of a template, and the column after each; a name alone is a column."""
    if "{" not in template:
        return [("", template)]
    try:
        parts = [(text, name) for text, name, _, _ in string.Formatter().parse(template)]
    except ValueError as error:
        raise ConfigError(f"--text {template!r} does not parse: {error}") from None
    names = [name for _, name in parts if name is not None]
    if not names or "" in names:
        raise ConfigError(f"--text {template!r} names no column; write {{title}} for column title")
    return parts


def columns_of(source: Source, group: str | None) -> dict[str, tuple[pa.DataType, ...]]:
    """Columns that the rows of a source need, with the types that JSON is parsed to."""
    columns: dict[str, tuple[pa.DataType, ...]] = {}
    rows = source.rows
    if isinstance(rows, Text):
        for _, name in template_parts(rows.template):
            if name is not None:
                columns[name] = _TEXT
    elif isinstance(rows, Ids):
        columns[rows.column] = _NUMBERS[:1]
        if rows.labels is not None:
            columns[rows.labels] = _NUMBERS
    for name, is_list, dtype in source.carried:
        is_float = dtype.startswith("float")
        kinds = (pa.float64(),) if is_float else (pa.int64(), pa.bool_())
        columns[name] = tuple(pa.list_(kind) if is_list else kind for kind in kinds)
    if group is not None:
        columns.setdefault(group, GROUP)
    return columns


def wanted_of(source: Source, group: str | None) -> Wanted:
    """What the format of a source must read."""
    sample_by = source.rows.sample_by if isinstance(source.rows, Text) else "document"
    return Wanted(columns_of(source, group), sample_by, LIMIT)


def documents_of(
    raw: Raw, source: Source, group: str | None
) -> tuple[pa.Table, dict[int, Problem], tuple[int, int]]:
    """Documents of rows: see `Batch`. Returns also the problems of rows, and what was cut.

    A row with a problem has one document of nothing.
    """
    problems, count = dict(raw.problems), len(raw.table)
    row, part = np.arange(count, dtype=np.int32), np.full(count, WHOLE, np.int32)
    columns: dict[str, Any]
    cut = (0, 0)
    if isinstance(source.rows, Text):
        text = _text(raw.table, source.rows, problems)
        if source.rows.truncate_at is not None:
            text, cut = _cut_text(text, source.rows.truncate_at)
        columns = {"text": text}
    else:
        assert isinstance(source.rows, Ids)
        columns = _ids(raw.table, source.rows, problems)
    for name, is_list, dtype in source.carried:
        like = (columns["ids"], getattr(source.rows, "column", "")) if is_list else None
        columns[name] = _carried(raw.table[name], name, dtype, like, problems)
    if group is not None:
        columns["group"] = _groups(raw.table[group], group, problems)
    if problems:
        columns = {name: _without(values, problems) for name, values in columns.items()}
    if isinstance(source.rows, Ids) and source.rows.split_at is not None:
        return _split(columns, source.rows.split_at, row), problems, cut
    return pa.table({"row": pa.array(row), "part": pa.array(part), **columns}), problems, cut


def _one(column: Any) -> Any:
    """A column as one array, decoded if it is a dictionary."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array


def _text(table: pa.Table, rows: Text, problems: dict[int, Problem]) -> Any:
    """Text of each row, large_string; null where a row has none."""
    parts = template_parts(rows.template)
    columns = {name: _utf8(table[name], name, problems) for _, name in parts if name is not None}
    pieces: list[Any] = []
    for literal, name in parts:
        pieces += [pa.scalar(literal, pa.large_string())] if literal else []
        pieces += [columns[name]] if name is not None else []
    text: Any = pieces[0]
    if len(pieces) > 1:
        text = pc.binary_join_element_wise(
            *pieces, pa.scalar("", pa.large_string()), null_handling="emit_null"
        )
    names = " and ".join(map(repr, columns))
    for number in np.flatnonzero(text.is_null().to_numpy(zero_copy_only=False)).tolist():
        problems.setdefault(number, Problem("null", f"the row has no {names}"))
    large = pc.greater(pc.binary_length(text), pa.scalar(LIMIT)).fill_null(False)
    if pc.any(large).as_py():
        for number in np.flatnonzero(large.to_numpy(zero_copy_only=False)).tolist():
            what = f"the text has more than {LIMIT:,} bytes"
            problems.setdefault(number, Problem("too_large", what))
    return text


def _cut_text(text: Any, pattern: str) -> tuple[Any, tuple[int, int]]:
    """Text up to the first match; number of documents and characters that were cut."""
    compiled, cut, characters = re.compile(pattern), 0, 0
    texts = text.to_pylist()
    for number, each in enumerate(texts):
        match = compiled.search(each) if each is not None else None
        if match is not None:
            texts[number] = each[: match.start()]
            cut, characters = cut + 1, characters + len(each) - match.start()
    return pa.array(texts, pa.large_string()), (cut, characters)


def _utf8(column: Any, name: str, problems: dict[int, Problem]) -> Any:
    """A column as large_string of valid UTF-8."""
    array = _one(column)
    if pa.types.is_null(array.type):
        return array.cast(pa.large_string())
    if str(array.type) not in ("string", "large_string", "string_view"):
        for number in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
            what = f"{name!r} is {array.type}, expected text"
            problems.setdefault(number, Problem("not_text", what))
        return pa.nulls(len(array), pa.large_string())
    array = array.cast(pa.large_string())
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        values: list[str | None] = []
        for number, value in enumerate(array.cast(pa.large_binary()).to_pylist()):
            try:
                values.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                problems.setdefault(number, Problem("bad_utf8", f"{name!r} is not UTF-8"))
                values.append(None)
        array = pa.array(values, pa.large_string())
    return array


def _numbers(
    column: Any, name: str, problems: dict[int, Problem], reason: str
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Values of a column of lists of whole numbers, and offsets; bad rows are empty."""
    array = _one(column)
    kind = array.type
    if pa.types.is_null(kind):
        array = array.cast(pa.large_list(pa.int64()))
    if not (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_null(kind)
    ) or not _is_whole(array.type.value_type):
        for number in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
            what = f"{name!r} is {kind}, expected a list of whole numbers"
            problems.setdefault(number, Problem(reason, what))
        return np.empty(0, np.int64), np.zeros(len(array) + 1, np.int64)
    lists = array.cast(pa.large_list(array.type.value_type))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    values = lists.flatten()
    offsets = np.append(0, np.cumsum(lengths))
    if values.null_count:
        wrong = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        rows = np.searchsorted(offsets, wrong, side="right") - 1
        for number, place in zip(rows.tolist(), (wrong - offsets[rows]).tolist(), strict=True):
            what = f"{name!r} has null at {place}, expected numbers"
            problems.setdefault(number, Problem(reason, what))
        values = values.fill_null(0)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    return values.to_numpy(zero_copy_only=False), offsets


def _is_whole(kind: Any) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)


def _ids(table: pa.Table, rows: Ids, problems: dict[int, Problem]) -> dict[str, Any]:
    """`ids`, and `labels` or `mask`, of each row."""
    ids, offsets = _numbers(table[rows.column], rows.column, problems, "bad_ids")
    for number in np.flatnonzero(np.diff(offsets) == 0).tolist():
        if not table[rows.column][number].is_valid:
            problems.setdefault(number, Problem("null", f"the row has no {rows.column!r}"))
    outside = (ids < 0) | (ids >= rows.vocab_size)
    expected = f"expected 0 to {rows.vocab_size - 1}"
    _wrong_values(outside, ids, offsets, rows.column, expected, "bad_ids", problems)
    columns = {"ids": _lists(np.where(outside, 0, ids).astype(np.int32), offsets)}
    if rows.labels is None:
        return columns
    reason = f"bad_{rows.kind}"
    values, of_labels = _numbers(table[rows.labels], rows.labels, problems, reason)
    if not np.array_equal(offsets, of_labels):
        have, wanted = np.diff(of_labels), np.diff(offsets)
        for row in np.flatnonzero(have != wanted).tolist():
            what = f"{rows.labels!r} has {have[row]} values, expected {wanted[row]}"
            problems.setdefault(row, Problem(reason, f"{what} as {rows.column!r}"))
        values = np.zeros(len(ids), np.int64)
    elif rows.kind == "mask":
        outside = (values != 0) & (values != 1)
        _wrong_values(outside, values, offsets, rows.labels, "expected 0 or 1", reason, problems)
        return columns | {"mask": _lists((values == 1).astype(np.int8), offsets)}
    else:
        outside = (values != NO_LOSS) & (values != ids)
        expected = f"expected {NO_LOSS} or the token id there: labels are not shifted"
        _wrong_values(outside, values, offsets, rows.labels, expected, reason, problems)
    return columns | {str(rows.kind): _lists(values.astype(np.int32), offsets)}


def _wrong_values(
    wrong: NDArray[Any],
    values: NDArray[Any],
    offsets: NDArray[Any],
    name: str,
    expected: str,
    reason: str,
    problems: dict[int, Problem],
) -> None:
    """Add a problem for each row that has a wrong value, about its first one."""
    places = np.flatnonzero(wrong)
    rows = np.searchsorted(offsets, places, side="right") - 1
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        what = f"{name!r} has {values[place]} at {place - int(offsets[row])}, {expected}"
        problems.setdefault(row, Problem(reason, what))


def _lists(values: NDArray[Any], offsets: NDArray[Any]) -> Any:
    return list_array(ListView(offsets.astype(np.int32), np.ascontiguousarray(values)))


def _carried(column: Any, name: str, dtype: str, like: Any, problems: dict[int, Problem]) -> Any:
    """A carried column. like: the ids that a list must be as long as, and their name."""
    array, kind = _one(column), pa.from_numpy_dtype(np.dtype(dtype))
    wanted = kind if like is None else pa.list_(kind)
    try:
        made = array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        rows = []
        for number, value in enumerate(array):
            try:
                rows.append(pa.array([value.as_py()], array.type).cast(wanted)[0].as_py())
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                what = f"{name!r} is {str(value)[:40]}, which {dtype} does not hold"
                problems.setdefault(number, Problem("bad_carry", what))
                rows.append(None)
        made = pa.array(rows, wanted)
    empty = made.is_null().to_numpy(zero_copy_only=False)
    for number in np.flatnonzero(empty).tolist():
        problems.setdefault(number, Problem("bad_carry", f"the row has no {name!r}"))
    if like is not None:
        lengths = pc.fill_null(pc.list_value_length(made), 0).to_numpy()
        wanted_lengths = pc.list_value_length(like[0]).to_numpy()
        for number in np.flatnonzero(lengths != wanted_lengths).tolist():
            values = f"{name!r} has {lengths[number]} values"
            what = f"{values}, expected {wanted_lengths[number]} as {like[1]!r}"
            problems.setdefault(number, Problem("bad_carry", what))
        return made
    return made.fill_null(0)


def _groups(column: Any, name: str, problems: dict[int, Problem]) -> Any:
    """A hash of the text of each row's group: 1 is '1', true is 'true', 1.0 is '1'."""
    array = _one(column)
    if pa.types.is_nested(array.type):
        for number in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)).tolist():
            what = f"{name!r} is {array.type}, expected text, a number, true or false"
            problems.setdefault(number, Problem("bad_group", what))
        return pa.array(np.zeros(len(array), np.int64))
    encoded = array.dictionary_encode(null_encoding="encode")
    hashes = [
        0 if value is None else xxhash.xxh3_64_intdigest(group_text(value).encode()) >> 1
        for value in encoded.dictionary.to_pylist()
    ]
    return pa.array(np.array(hashes, np.int64)[encoded.indices.to_numpy()])


def _without(values: Any, problems: Mapping[int, Problem]) -> Any:
    """Values with nothing in rows that have a problem; groups stay."""
    sound = np.ones(len(values), np.bool_)
    sound[list(problems)] = False
    if pa.types.is_list(values.type):
        lengths = np.where(sound, pc.fill_null(pc.list_value_length(values), 0).to_numpy(), 0)
        flat = values.filter(pa.array(sound)).flatten().to_numpy(zero_copy_only=False)
        return _lists(flat, np.append(0, np.cumsum(lengths)))
    if pa.types.is_large_string(values.type):
        return pc.if_else(pa.array(sound), values, pa.scalar(None, values.type))
    return values


def _split(columns: dict[str, Any], split_at: tuple[str, int], row: NDArray[np.int32]) -> pa.Table:
    """Documents of rows of ids that another tool packed: after each EOS, or before each BOS."""
    kind, token = split_at
    offsets = columns["ids"].offsets.to_numpy().astype(np.int64)
    ids = columns["ids"].values.to_numpy()[offsets[0] : offsets[-1]]
    offsets = offsets - offsets[0]
    begins = np.zeros(len(ids) + 1, np.bool_)
    begins[: len(ids)] = ids == token
    if kind == "eos":
        begins[1:] = ids == token
    begins[len(ids)], begins[:1] = False, False
    starts = np.unique(np.concatenate([np.flatnonzero(begins), offsets[:-1]]))
    empty = np.flatnonzero(np.diff(offsets) == 0)
    starts = starts[starts < len(ids)]
    of_row = np.searchsorted(offsets, starts, side="right") - 1
    rows = np.sort(np.concatenate([of_row, empty]))
    lengths = np.zeros(len(rows), np.int64)
    lengths[~np.isin(rows, empty)] = np.diff(np.append(starts, len(ids)))
    bounds = np.append(0, np.cumsum(lengths))
    firsts = np.searchsorted(rows, rows, side="left")
    alone = np.searchsorted(rows, rows, side="right") - firsts == 1
    part = np.where(alone, WHOLE, np.arange(len(rows)) - firsts).astype(np.int32)
    made: dict[str, Any] = {"row": pa.array(row[rows]), "part": pa.array(part)}
    for name, values in columns.items():
        if pa.types.is_list(values.type):
            of = values.offsets.to_numpy()
            made[name] = _lists(values.values.to_numpy()[of[0] : of[-1]], bounds)
        else:
            made[name] = values.take(pa.array(rows))
    return pa.table(made)
