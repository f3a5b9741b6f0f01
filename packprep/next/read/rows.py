"""A row makes documents: what text, ids and other kinds of rows differ in.

`columns_of` says which columns are read, `documents_of` what they become. Nothing is cast or
guessed: a value that is not what it must be is the problem of its row.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from ..schemas.columns import NO_LOSS, WHOLE
from ..schemas.views import ListView, list_array
from ..support.errors import ConfigError
from .types import (
    GROUP,
    Batch,
    Chat,
    Columns,
    Ids,
    Kind,
    Problem,
    Raw,
    Render,
    Source,
    Text,
    group_text,
    sides_of,
)

TEXT = Kind((pa.string(),), "text", "not_text")
_STRINGS = ("string", "large_string", "string_view")
Problems = dict[int, Problem]


def numbers(dtype: str, reason: str, *, lists: bool = True) -> Kind:
    """Numbers of a row that a type of numpy holds."""
    types: tuple[pa.DataType, ...] = (pa.float64(),)
    value = "a number"
    if not dtype.startswith("float"):
        types, limits = (pa.int64(), pa.bool_()), np.iinfo(dtype)
        value = f"a whole number from {limits.min:,} to {limits.max:,}"
    return Kind(tuple(map(pa.list_, types)) if lists else types, value, reason, dtype)


def is_number(kind: pa.DataType) -> bool:
    """True for whole numbers, floats, true and false."""
    return kind == pa.bool_() or pa.types.is_integer(kind) or pa.types.is_floating(kind)


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


def columns_of(source: Source, group: str | None) -> dict[str, Kind]:
    """Columns that the rows of a source need."""
    columns: dict[str, Kind] = {}
    for rows in sides_of(source.rows):
        if isinstance(rows, Text):
            parts = template_parts(rows.template)
            columns |= {name: TEXT for _, name in parts if name is not None}
        elif isinstance(rows, Ids):
            columns[rows.column] = numbers("int32", "bad_ids")
            if rows.labels is not None:
                dtype = "int8" if rows.kind == "mask" else "int32"
                columns[rows.labels] = numbers(dtype, f"bad_{rows.kind}")
        else:
            from .rendered import nested_columns

            columns |= nested_columns(rows)
    columns |= source.carried
    if group is not None:
        columns.setdefault(group, GROUP)
    return columns


def documents_of(
    raw: Raw, source: Source, group: str | None, render: Render | None = None
) -> Batch:
    """Documents of rows; one with a problem has documents of nothing. render: of chats, pieces."""
    problems, columns = dict(raw.problems), columns_of(source, group)
    cut, turns, count = (0, 0), Counter[str](), len(raw.table)
    sides: list[dict[str, Any]] = []
    left_out = Counter[str]()
    unread = [n for n in raw.names if n not in columns or columns[n].reason == "named"]
    for rows in sides_of(source.rows):
        made: dict[str, Any] = {"row": np.arange(count, dtype=np.int32)}
        made["part"] = np.full(count, WHOLE, np.int32)
        if isinstance(rows, Text):
            made["text"] = _text(raw.table, rows, problems)
            if rows.truncate_at is not None:
                made["text"], cut = _cut_text(made["text"], rows.truncate_at)
        elif isinstance(rows, Ids):
            ids = _flat(raw.table, rows.column, columns, problems)
            made |= _ids(ids, raw.table, rows, columns, problems)
        else:
            from .rendered import rendered

            assert render is not None
            made, facts = rendered(raw.table, rows, render, problems)
            turns += facts.turns
            if isinstance(rows, Chat):
                left_out.update(facts.left_out)
                unread += [f"{key} of messages" for key in facts.unread]
        sides.append(made)
    made = sides[0]
    if len(sides) > 1:
        from .rendered import joined

        made = joined(sides)
    row, part = made.pop("row"), made.pop("part")
    for name, kind in source.carried.items():
        flat = _flat(raw.table, name, columns, problems)
        if kind.is_list:
            made[name] = flat.aligned(ids, problems).lists
        else:
            values = np.zeros(count, kind.dtype)
            values[flat.lengths > 0] = flat.values
            made[name] = values[row]
    if group is not None:
        made["group"] = _groups(raw.table[group], group, problems)[row]
    if problems:
        sound = np.ones(count, np.bool_)
        sound[[*problems]] = False
        made = {name: _sound(values, sound[row]) for name, values in made.items()}
    if isinstance(source.rows, Ids) and source.rows.split_at is not None:
        row, part, made = _split(made, *source.rows.split_at)
        turns = Counter(documents=len(row), split_rows=len(np.unique(row[part != WHOLE])))
    return Batch(
        source=source.number,
        rows=count,
        documents=pa.table({"row": row, "part": part, **made}),
        problems=problems,
        cut=cut,
        unread=tuple(unread),
        turns=turns,
        left_out=left_out,
    )


def _add(problems: Problems, rows: Any, reason: str, what: Callable[[int], str]) -> None:
    """Add a problem to the rows where a mask is true, unless they have one."""
    for row in np.flatnonzero(rows).tolist():
        problems.setdefault(row, Problem(reason, what(row)))


def _one(column: Any) -> Any:
    """A column as one array, decoded if it is a dictionary."""
    array = column.combine_chunks()
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _mask(array: Any) -> NDArray[np.bool_]:
    """Values of true and false."""
    values: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False)
    return values


def _text(table: pa.Table, rows: Text, problems: Problems) -> Any:
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
    _add(problems, _mask(text.is_null()), "null", lambda _: f"the row has no {names}")
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


def _utf8(column: Any, name: str, problems: Problems) -> Any:
    """A column as large_string of valid UTF-8."""
    array = _one(column)
    if pa.types.is_null(array.type):
        return array.cast(pa.large_string())
    if str(array.type) not in _STRINGS:
        what = f"{name!r} is {array.type}, expected text"
        _add(problems, _mask(array.is_valid()), "not_text", lambda _: what)
        return pa.nulls(len(array), pa.large_string())
    binary = array.cast(pa.large_binary())
    try:
        return binary.cast(pa.large_string())
    except pa.ArrowInvalid:
        values = [each and each.decode("utf-8", "replace") for each in binary.to_pylist()]
        text = pa.array(values, pa.large_string())
        wrong: Any = pc.not_equal(text.cast(pa.large_binary()), binary)
        what = f"{name!r} is not UTF-8"
        _add(problems, _mask(wrong.fill_null(False)), "bad_utf8", lambda _: what)
        return text


class _Flat(NamedTuple):
    """Numbers of a column: row r has values[offsets[r]:offsets[r + 1]], none if it is null."""

    name: str
    kind: Kind
    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of values of each row."""
        return np.diff(self.offsets)

    @property
    def lists(self) -> Any:
        """The lists as an array of Arrow."""
        return list_array(ListView(self.offsets.astype(np.int32), self.values))

    def refuse(
        self, wrong: Any, problems: Problems, expected: Callable[[int], str], shown: Any = None
    ) -> None:
        """Add a problem to each row with a wrong value, about its first one. shown: the values."""
        places = np.flatnonzero(wrong)
        rows = np.searchsorted(self.offsets, places, side="right") - 1
        for row, number in zip(*np.unique(rows, return_index=True), strict=True):
            place = int(places[number])
            value = self.values[place] if shown is None else shown[place]
            at = f" at {place - self.offsets[row]}" if self.kind.is_list else ""
            what = f"{self.name!r} has {value}{at}, expected {expected(place)}"
            problems.setdefault(int(row), Problem(self.kind.reason, what))

    def aligned(self, like: "_Flat", problems: Problems) -> "_Flat":
        """These lists with as many values as others have; zeros in rows that had another number."""
        have, wanted = self.lengths, like.lengths
        same = have == wanted

        def what(row: int) -> str:
            return f"{self.name!r} has {have[row]} values, expected {wanted[row]} as {like.name!r}"

        _add(problems, ~same, self.kind.reason, what)
        values = np.zeros(len(like.values), self.values.dtype)
        values[np.repeat(same, wanted)] = self.values[np.repeat(same, have)]
        return self._replace(values=values, offsets=like.offsets)


def _flat(table: pa.Table, name: str, columns: Columns, problems: Problems) -> _Flat:
    """The numbers of a column, of the type that they are wanted in."""
    array, kind = _one(table[name]), columns[name]
    _add(problems, _mask(array.is_null()), "null", lambda _: f"the row has no {name!r}")
    items: Any = getattr(array.type, "value_type", array.type)
    is_list = items is not array.type
    if is_list != kind.is_list or not is_number(items):
        what = f"{name!r} is {array.type}, expected {kind.expected}"
        _add(problems, _mask(array.is_valid()), kind.reason, lambda _: what)
        return _Flat(name, kind, np.empty(0, kind.dtype), np.zeros(len(array) + 1, np.int64))
    lengths = pc.fill_null(pc.list_value_length(array), 0) if is_list else array.is_valid()
    offsets = np.append(0, np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64))
    values = array.cast(pa.large_list(items)).flatten() if is_list else array.drop_null()
    found = pc.fill_null(values, False if items == pa.bool_() else 0).to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        flat = _Flat(name, kind, found.astype(kind.dtype), offsets)
    if values.null_count:
        nulls = np.full(len(values), "null")
        flat.refuse(_mask(values.is_null()), problems, lambda _: kind.value, nulls)
    if flat.values.dtype.kind != "f" or found.dtype.kind != "f":
        flat.refuse(flat.values != found, problems, lambda _: kind.value, found)
    return flat


def _ids(
    ids: _Flat, table: pa.Table, rows: Ids, columns: Columns, problems: Problems
) -> dict[str, Any]:
    """`ids`, and `labels` or `mask`, of each row."""
    outside = (ids.values < 0) | (ids.values >= rows.vocab_size)
    ids.refuse(outside, problems, lambda _: f"0 to {rows.vocab_size - 1}")
    if rows.labels is None:
        return {"ids": ids.lists}
    found = _flat(table, rows.labels, columns, problems).aligned(ids, problems)
    if rows.kind == "mask":
        found.refuse(found.values & ~1, problems, lambda _: "0 or 1")
    else:
        wrong = (found.values != NO_LOSS) & (found.values != ids.values)
        found.refuse(wrong, problems, lambda at: f"{NO_LOSS} or its token, {ids.values[at]}")
    return {"ids": ids.lists, str(rows.kind): found.lists}


def _groups(column: Any, name: str, problems: Problems) -> Any:
    """A hash of the text of each row's group: 1 is '1', true is 'true', 1.0 is '1'."""
    array = _one(column)
    if pa.types.is_nested(array.type):
        what = f"{name!r} is {array.type}, expected {GROUP.value}"
        _add(problems, _mask(array.is_valid()), GROUP.reason, lambda _: what)
        return np.zeros(len(array), np.int64)
    if str(array.type) in _STRINGS:
        array = array.cast(pa.large_binary())  # of any bytes
    encoded = array.dictionary_encode(null_encoding="encode")
    hashes = [
        0 if value is None else xxhash.xxh3_64_intdigest(group_text(value).encode()) >> 1
        for value in encoded.dictionary.to_pylist()
    ]
    return np.array(hashes, np.int64)[encoded.indices.to_numpy()]


def _sound(values: Any, sound: NDArray[np.bool_]) -> Any:
    """Text and lists with nothing in rows that are not sound; other values unchanged."""
    if isinstance(values, np.ndarray):
        return values
    if pa.types.is_list(values.type) and pa.types.is_struct(values.type.value_type):
        return values.take(pa.array(np.arange(len(values)), mask=~sound))
    nothing: Any = [] if pa.types.is_list(values.type) else None
    return pc.if_else(pa.array(sound), values, pa.scalar(nothing, values.type))


def _split(made: Mapping[str, Any], end: str, token: int) -> tuple[Any, Any, dict[str, Any]]:
    """Row, part and values of the documents of rows that another tool packed.

    end: eos, which ends a document, or bos, which begins one; token: its id.
    """
    lists = {name: values for name, values in made.items() if not isinstance(values, np.ndarray)}
    offsets = lists["ids"].offsets.to_numpy()
    places = np.flatnonzero(lists["ids"].values.to_numpy() == token) + (end == "eos")
    places = np.setdiff1d(places, offsets)
    inside = np.bincount(np.searchsorted(offsets, places) - 1, minlength=len(offsets) - 1)
    row = np.repeat(np.arange(len(inside)), inside + 1)
    part = np.arange(len(row)) - np.searchsorted(row, row)
    part = np.where(inside[row] == 0, WHOLE, part)
    bounds: Any = np.sort(np.concatenate([offsets, places])).astype(np.int32)
    divided = {name: pa.ListArray.from_arrays(bounds, each.values) for name, each in lists.items()}
    others = {name: values[row] for name, values in made.items() if name not in lists}
    return row.astype(np.int32), part.astype(np.int32), divided | others
