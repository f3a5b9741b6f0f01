"""Numbers of rows: token ids, labels, masks and carried columns, checked row by row.

A list has a value per token and must be as long as the ids of its row. A plain number belongs to
the row. Types come from the first rows of the first source: whole numbers keep their type (true and
false become 1 and 0, those of JSON are int64), floats become float32, and `carry` may name another
type, "reward:float64". A later row that does not fit is an error with its number.

The problem of a row is NULL, NOT_NUMBERS, BAD_IDS, BAD_LABELS, BAD_MASK or BAD_CARRY of
problems.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packprep.chat.conversations import have_values
from packprep.config.carried import RESERVED
from packprep.schemas.columns import NO_LOSS, NUMBER_TYPES, Column
from packprep.sources.formats.row_plan import IdColumns, RowPlan, TokenIds, carry_name
from packprep.sources.label_kinds import kind_in
from packprep.support.errors import InputError
from packprep.support.problems import BadRow, Problem, problem_array, problems_in

_STORED_AS = {kind: name for name, number in NUMBER_TYPES.items() for kind in number.read_from}


def carried_types(
    types: Mapping[str, pa.DataType], plan: RowPlan, where: str
) -> tuple[Column, ...]:
    """Carried columns, with their types in the first rows.

    where: the source, for messages.
    """
    columns = []
    for entry in plan.carry:
        name = carry_name(entry)
        type_ = types[name]
        is_list = _is_list(type_)
        values = cast("pa.ListType[Any]", type_).value_type if is_list else type_
        if not _is_number(values):
            shown = "no value" if pa.types.is_null(values) else str(type_)
            raise InputError(
                f"{where} has {shown} in {name!r} in its first rows, expected numbers or lists of "
                "numbers to carry"
            )
        dtype: Any = entry.removeprefix(name)[1:] or _STORED_AS[str(values)]
        columns.append(Column(name=name, kind="token" if is_list else "segment", dtype=dtype))
        if is_list and not isinstance(plan.rows, TokenIds):
            raise InputError(
                f"{where} has lists in {name!r}: a value per token needs the tokens it belongs to, "
                "so add --input-ids-column, or carry a plain number per row"
            )
        if is_list and len(plan.rows.sides) == 2:
            raise InputError(
                f"{where} has lists in {name!r}: a pair has two sides, so carry a plain number per "
                "row"
            )
    return tuple(columns)


def _is_list(type_: pa.DataType) -> bool:
    return any(
        kind(type_)
        for kind in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    )


def _is_number(values: pa.DataType) -> bool:
    return any(
        kind(values) for kind in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    )


class RowProblems:
    """The first problem of each row of a table."""

    def __init__(self, column: pa.Array[Any] | pa.ChunkedArray[Any]) -> None:
        self._problems: list[Problem | None] = problems_in(column)

    def add(self, row: int, reason: BadRow, detail: str) -> None:
        self._problems[row] = self._problems[row] or Problem(reason, detail)

    @property
    def array(self) -> pa.Array[Any]:
        return problem_array(self._problems)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """True for rows without a problem, [rows]."""
        return np.array([problem is None for problem in self._problems], np.bool_)


def read_numbers(table: pa.Table, plan: RowPlan, problems: RowProblems) -> dict[str, pa.Array[Any]]:
    """`ids`, `labels` and carried columns of rows, as Arrow arrays, by their name in token files.

    Those of the second side of pairs are `second_ids` and `second_labels`. A row with a problem has
    empty lists and zeros. New problems are added to `problems`.
    """
    lists: dict[str, _Lists] = {}
    scalars: dict[str, pa.Array[Any]] = {}
    rows = plan.rows if isinstance(plan.rows, TokenIds) else TokenIds((), 0)
    kept: NDArray[np.bool_] | None = None
    whole: _Lists | None = None
    for name in rows.refused:
        _refuse(table[name], name, problems)
    if not rows.is_decided:
        rows = rows.of_kind(kind_in(table, rows, "the batch") or "labels")
    sides, size = rows.sides, rows.vocab_size
    for side, prefix in zip(sides, ("", "second_"), strict=False):
        whole = ids = _ids(table, side.ids, size, problems)
        labels = _labels(table, side, ids, problems)
        if side.attention is not None:
            kept = _attended(table, side.attention, ids, problems)
            ids, labels = ids.only(kept, whole), labels and labels.only(kept, whole)
        if side.prompt is not None:
            labels = labels or ids.filled(1, "int8")
            prompt = _ids(table, side.prompt, size, problems)
            if side.prompt_attention is not None:
                attended = _attended(table, side.prompt_attention, prompt, problems)
                prompt = prompt.only(attended, prompt)
            labels = prompt.filled(
                NO_LOSS if labels.values.dtype == np.int32 else 0, labels.values.dtype
            ).before(labels)
            ids = prompt.before(ids)
        lists[f"{prefix}ids"] = ids
        lists |= {f"{prefix}labels": labels} if labels is not None else {}
    for column in plan.carried:
        if column.kind == "token":
            values = _Lists.from_column(
                table[column.name], column.name, column.dtype, BadRow.BAD_CARRY, problems
            )
            assert whole is not None
            values.check_length(whole)
            lists[column.name] = values if kept is None else values.only(kept, whole)
        else:
            scalars[column.name] = _scalars(table[column.name], column, problems)
    usable = problems.usable
    columns = {name: column.array(usable) for name, column in lists.items()}
    return columns | {
        name: pc.if_else(pa.array(usable), values, pa.scalar(0, values.type))
        for name, values in scalars.items()
    }


def _ids(table: pa.Table, name: str, vocab_size: int, problems: RowProblems) -> _Lists:
    ids = _Lists.from_column(table[name], name, "int32", BadRow.BAD_IDS, problems)
    ids.check(ids.values.view(np.uint32) >= vocab_size, f"0 to {vocab_size - 1:,}")
    return ids


def _labels(table: pa.Table, side: IdColumns, ids: _Lists, problems: RowProblems) -> _Lists | None:
    """Labels as ids, each of its own token, or as a mask where rows have only that.

    With both, a token has a loss only if both say so.
    """
    labels = mask = None
    if (name := side.labels) is not None:
        labels = _Lists.from_column(table[name], name, "int32", BadRow.BAD_LABELS, problems)
        labels.check_length(ids)
        labels.check_labels(ids)
    if (name := side.mask) is not None:
        mask = _Lists.from_column(table[name], name, "int8", BadRow.BAD_MASK, problems)
        mask.check((mask.values != 0) & (mask.values != 1), "0 or 1")
        mask.check_length(ids)
    if labels is None or mask is None:
        return labels if labels is not None else mask
    for row in np.flatnonzero(problems.usable):  # lists of other rows may differ in length
        row_labels = labels.values[labels.offsets[row] : labels.offsets[row + 1]]
        row_labels[mask.values[mask.offsets[row] : mask.offsets[row + 1]] == 0] = NO_LOSS
    return labels


def _attended(table: pa.Table, name: str, ids: _Lists, problems: RowProblems) -> NDArray[np.bool_]:
    """True for each of the ids that is no padding; all of a row without a mask.

    A row whose zeros are not at its ends has a problem.
    """
    column = table[name]
    kept = np.ones(len(ids.values), np.bool_)
    if column.null_count == len(column):
        return kept
    mask = _Lists.from_column(column, name, "int8", BadRow.BAD_MASK, problems, optional=True)
    mask.check((mask.values != 0) & (mask.values != 1), "0 or 1")
    has_mask = np.diff(mask.offsets) > 0
    mask.check_length(ids, has_mask)
    if mask.values.all():
        return kept
    for row in np.flatnonzero(has_mask & problems.usable).tolist():
        first, last = mask.offsets[row : row + 2]
        ones = np.flatnonzero(mask.values[first:last])
        kept[ids.offsets[row] : ids.offsets[row + 1]] = mask.values[first:last] != 0
        gaps = np.flatnonzero(np.diff(ones) > 1)
        if len(gaps):
            problems.add(
                row,
                BadRow.BAD_MASK,
                f"{name!r} has 0 at {ones[gaps[0]] + 1}, between ones; expected 0 at the ends of a "
                f"row only, where it is padding: carry the column (--carry {name}), or remove it",
            )
    return kept


def _refuse(column: pa.ChunkedArray[Any], name: str, problems: RowProblems) -> None:
    """Add a problem for each row with a value in a column that no option names."""
    carry = "" if name in RESERVED else f" or --carry {name}"
    for row in np.flatnonzero(have_values(column)).tolist():
        problems.add(
            row,
            BadRow.BAD_LABELS,
            f"the row has {name!r}, which no option names, so that every token would be trained; "
            f"name it with --labels-column {name}{carry}, or remove the column",
        )


@dataclass
class _Lists:
    """A column of lists, flat. offsets: int64 [rows + 1], from 0. name, reason: for messages."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]
    name: str
    reason: BadRow
    problems: RowProblems

    @staticmethod
    def from_column(
        column: pa.ChunkedArray[Any],
        name: str,
        dtype: str,
        reason: BadRow,
        problems: RowProblems,
        *,
        optional: bool = False,
    ) -> _Lists:
        """The column's lists as numbers of this type.

        Rows with values that are not numbers, or do not fit the type, are problems, and so are rows
        without a value, unless it is optional.
        """
        array = column.combine_chunks()
        type_, rows = array.type, len(array)
        nothing = _Lists(np.empty(0, dtype), np.zeros(rows + 1, np.int64), name, reason, problems)
        is_numbers = _is_list(type_) and (
            _is_number(type_.value_type) or pa.types.is_null(type_.value_type)
        )
        if not is_numbers:
            for row in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)):
                problems.add(
                    int(row), BadRow.NOT_NUMBERS, f"{name!r} is {type_}, expected a list of numbers"
                )
        if not optional:
            _add_nulls(array, name, problems)
        if not is_numbers:
            return nothing
        lists_array = cast("pa.LargeListArray[Any]", array.cast(pa.large_list(type_.value_type)))
        offsets = lists_array.offsets.to_numpy()  # they do not begin at 0 if the array is a slice
        flat = lists_array.values.slice(offsets[0], offsets[-1] - offsets[0])
        lists = _Lists(np.empty(0), (offsets - offsets[0]).astype(np.int64), name, reason, problems)
        for place in (
            np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False)) if flat.null_count else ()
        ):
            lists._add(int(place), "null", "a number")
        if pa.types.is_null(flat.type):
            flat = pa.array(np.zeros(len(flat), np.int8))
        lists.values = _converted(flat, dtype, lists._add)
        return lists

    def _add(self, place: int, value: Any, expected: str) -> None:
        row = int(np.searchsorted(self.offsets, place, side="right")) - 1
        where = f"{self.name!r} has {value} at {place - int(self.offsets[row])}"
        self.problems.add(row, self.reason, f"{where}, expected {expected}")

    def check(self, wrong: NDArray[np.bool_], expected: str) -> None:
        """Add a problem for each row with a wrong value."""
        for place in np.flatnonzero(wrong):
            self._add(int(place), self.values[place], expected)

    def filled(self, value: int, dtype: Any) -> _Lists:
        """Lists of the same lengths with this value everywhere."""
        return replace(self, values=np.full(len(self.values), value, dtype))

    def before(self, other: _Lists) -> _Lists:
        """The lists of each row, followed by its lists in `other`, of the same type."""
        offsets = self.offsets + other.offsets
        values = np.empty(offsets[-1], other.values.dtype)
        for lists, begins in (
            (self, offsets[:-1]),
            (other, offsets[:-1] + np.diff(self.offsets)),
        ):
            lengths = np.diff(lists.offsets)
            places = np.repeat(begins - lists.offsets[:-1], lengths)
            values[places + np.arange(len(lists.values))] = lists.values
        return replace(other, values=values, offsets=offsets)

    def only(self, kept: NDArray[np.bool_], ids: _Lists) -> _Lists:
        """The lists without the values whose token is not kept; see `check_length` for `ids`.

        A list of another length than its row in `ids` is empty: its row has a problem.
        """
        lengths, of_ids = np.diff(self.offsets), np.diff(ids.offsets)
        same = lengths == of_ids
        mine = np.repeat(same, lengths)
        mine[mine] = kept[np.repeat(same, of_ids)]
        offsets = np.append(0, np.cumsum(mine))[self.offsets]
        return replace(self, values=self.values[mine], offsets=offsets)

    def check_length(self, ids: _Lists, rows: NDArray[np.bool_] | None = None) -> None:
        """Add a problem for each row that has more or fewer values than ids.

        rows: that are checked, [rows]; all if it is None.
        """
        lengths, expected = np.diff(self.offsets), np.diff(ids.offsets)
        wrong = lengths != expected if rows is None else rows & (lengths != expected)
        for row in np.flatnonzero(wrong):
            self.problems.add(
                int(row),
                self.reason,
                f"{self.name!r} has {lengths[row]:,} values and {ids.name!r} {expected[row]:,}, "
                "expected one for each",
            )

    def check_labels(self, ids: _Lists) -> None:
        """Add a problem for each row with a label that is neither its token nor NO_LOSS.

        Rows of another length than in `ids` are left to `check_length`.
        """
        lengths, of_ids = np.diff(self.offsets), np.diff(ids.offsets)
        same = lengths == of_ids
        tokens = self.values.copy()
        tokens[np.repeat(same, lengths)] = ids.values[np.repeat(same, of_ids)]
        places = np.flatnonzero((self.values != tokens) & (self.values != NO_LOSS))
        rows = np.searchsorted(self.offsets, places, side="right") - 1
        for row, first in zip(*np.unique(rows, return_index=True), strict=True):
            begin, end = self.offsets[row : row + 2]
            labels, following = self.values[begin : end - 1], tokens[begin + 1 : end]
            trained = labels != NO_LOSS
            expected = f"{NO_LOSS} or its token, {tokens[places[first]]}"
            if trained.any() and np.array_equal(labels[trained], following[trained]):
                expected += (
                    "; each label of the row is the next token, so they are shifted already: give "
                    f"them unshifted, [{NO_LOSS}, *labels[:-1]]"
                )
            self._add(int(places[first]), self.values[places[first]], expected)

    def array(self, usable: NDArray[np.bool_]) -> pa.Array[Any]:
        """List array, [rows]; a row that is not usable has an empty list."""
        values, offsets = self.values, self.offsets
        if not usable.all():
            lengths = np.diff(offsets)
            values = values[np.repeat(usable, lengths)]
            offsets = np.append(0, np.cumsum(np.where(usable, lengths, 0)))
        lists: pa.ListArray[Any] = pa.ListArray.from_arrays(
            pa.array(offsets.astype(np.int32), pa.int32()), pa.array(values)
        )
        return lists


def _scalars(column: pa.ChunkedArray[Any], carried: Column, problems: RowProblems) -> pa.Array[Any]:
    """A number per row as the column's type, 0 where there is none."""
    array = column.combine_chunks()

    def add(row: int, value: Any, expected: str) -> None:
        problems.add(row, BadRow.BAD_CARRY, f"{carried.name!r} is {value}, expected {expected}")

    if pa.types.is_string(array.type):  # of CSV
        array = _parse_text(array, add)
    if not _is_number(array.type):
        for row in np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False)):
            problems.add(
                int(row), BadRow.NOT_NUMBERS, f"{carried.name!r} is {array.type}, expected a number"
            )
        array = pa.nulls(len(array), pa.int8())
    _add_nulls(array, carried.name, problems)
    scalars: pa.Array[Any] = pa.array(_converted(array, carried.dtype, add))
    return scalars


def text_type(column: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.DataType:
    """Type of the numbers written in a column of text; its own type if one is not a number."""
    for wanted in (pa.int64(), pa.float64()):
        try:
            column.cast(wanted)
            return wanted
        except pa.ArrowInvalid:
            continue
    kind: pa.DataType = column.type
    return kind


def _parse_text(array: pa.Array[Any], add: Any) -> pa.Array[Any]:
    """Numbers written as text, in a type that holds all of them.

    Calls add(row, text, expected) for each other text.
    """
    kind = text_type(array)
    if kind != array.type:
        return array.cast(kind)
    values: list[float | None] = []
    for row, text in enumerate(array.to_pylist()):
        try:
            values.append(None if text is None else float(text))
        except ValueError:
            add(row, repr(text), "a number")
            values.append(0)
    return pa.array(values, pa.float64())


def _add_nulls(array: pa.Array[Any], name: str, problems: RowProblems) -> None:
    if array.null_count:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
            problems.add(int(row), BadRow.NULL, f"the row has no {name!r}")


def _converted(values: pa.Array[Any], dtype: str, add: Any) -> NDArray[Any]:
    """Values as another type, 0 for null.

    Calls add(place, value, expected) for each that does not fit.
    """
    values = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
    numbers: NDArray[Any] = values.fill_null(0).to_numpy()
    wanted = np.dtype(dtype)
    if numbers.dtype.kind == "f":
        for place in np.flatnonzero(~np.isfinite(numbers)):
            add(int(place), numbers[place], "a finite number")
        numbers = np.where(np.isfinite(numbers), numbers, 0)
    if wanted.kind == "f":
        with np.errstate(over="ignore"):
            converted = numbers.astype(wanted)
        for place in np.flatnonzero(~np.isfinite(converted)):
            add(int(place), numbers[place], f"a number that {dtype} holds")
        return np.where(np.isfinite(converted), converted, 0)
    if np.can_cast(numbers.dtype, wanted):  # such as uint16 in int32: every number fits
        return numbers.astype(wanted)
    bounds = np.iinfo(wanted)
    if numbers.dtype.kind == "f":
        fits = (
            (numbers >= bounds.min)
            & (numbers < float(bounds.max) + 1)
            & (numbers == np.floor(numbers))
        )
    else:
        fits = (numbers >= bounds.min) & (numbers <= bounds.max)
    if not fits.all():
        for place in np.flatnonzero(~fits):
            add(int(place), numbers[place], f"a whole number from {bounds.min:,} to {bounds.max:,}")
        numbers = np.where(fits, numbers, 0)
    return numbers.astype(wanted)
