"""Rows that are not text alone: token ids, chats, pieces, and pairs of anything."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..config.checks import kind_of_rows
from ..config.grammar import IdColumns
from ..config.options import BuildConfig
from ..schemas.columns import NO_LOSS, WHOLE
from ..schemas.views import ListView, list_array, numpy_values
from .reading import of_text, whole, without
from .types import Chat, Ids, Pairs, Pieces, Render, Rows, Source, Text, sides_of
from .values import NESTED, Columns, Kind, Problem, Problems, numbers, one_array

_NO_PADDING = numbers("int8", "padding", (1, 1))._replace(
    value="only 1: cut the padding off", is_needed=False, is_beside=True
)


def other_rows(config: BuildConfig, own: str | None, ids: Ids) -> Rows:
    """How the rows of a source are read. own: columns of ids, of this source alone."""
    kind = kind_of_rows(config)
    if own is not None or kind == "ids":
        asked = IdColumns.parse(str(own or config.ids or "input_ids"))
        column, labels = (*asked.columns, None)[:2]
        return replace(ids, column=str(column), labels=labels, kind=asked.kind)
    if kind == "pairs":
        return _pairs(config, ids)
    if kind == "pieces":
        return Pieces((str(config.pieces),))
    return Chat(tuple(str(config.messages).split(",")))


def _pairs(config: BuildConfig, ids: Ids) -> Pairs:
    """The two sides of pairs: of text, of conversations, or of what another option says."""
    *prompt, first, second = str(config.pairs).split(",")
    if config.ids is not None:
        asked = IdColumns.parse(config.ids, pairs=True)
        labels, side = (*asked.columns[1:], None, None), partial(replace, ids, kind=asked.kind)
        return Pairs((side(column=first, labels=labels[0]), side(column=second, labels=labels[1])))
    if config.pieces is not None:
        return Pairs((Pieces((first,)), Pieces((second,))))
    if prompt or config.messages is not None:
        return Pairs((Chat((*prompt, first)), Chat((*prompt, second))))
    return Pairs((Text(first), Text(second)))


def other_columns(rows: Ids | Chat | Pieces) -> dict[str, Kind]:
    """Columns that rows need, those that are read beside a conversation included."""
    if isinstance(rows, Ids):
        columns = {rows.column: numbers("int32", "bad_ids", (0, rows.vocab_size - 1))}
        if rows.labels is not None:
            labels, mask = numbers("int32", "bad_labels"), numbers("int8", "bad_mask", (0, 1))
            columns[rows.labels] = mask if rows.kind == "mask" else labels
        columns.setdefault("attention_mask", _NO_PADDING)
        return columns
    nested = dict.fromkeys(rows.columns, NESTED)
    if isinstance(rows, Pieces):
        return nested
    from ..chat.conversations import PICTURES, beside

    optional = NESTED._replace(is_beside=True)
    columns = dict.fromkeys(beside(rows.columns), optional)
    columns |= dict.fromkeys(PICTURES, optional._replace(reason="named"))
    return columns | nested


def known_rows(rows: Any, names: Sequence[str], table: pa.Table, where: str) -> Any:
    """Rows with the columns of `auto`, and the kind of labels. names: columns of the source."""
    if isinstance(rows, Pairs):
        first, second = (known_rows(side, names, table, where) for side in rows.sides)
        return Pairs((first, second))
    if isinstance(rows, Chat):
        from ..chat.conversations import find_columns

        return Chat(find_columns(rows.columns, names, where))
    if isinstance(rows, Ids) and rows.labels and not rows.kind:
        labels = {value for row in table[rows.labels].to_pylist() for value in row or ()}
        return replace(rows, kind="mask" if labels <= {0, 1} else "labels")
    return rows


def other_documents(
    table: pa.Table, source: Source, columns: Columns, problems: Problems, render: Render | None
) -> tuple[pa.Table, dict[str, Any], dict[str, Any]]:
    """The table without rows that have a problem, documents, and fields of their `Batch`.

    problems: gets those of rows that are no sound ids, or cannot be rendered. render: see `read`.
    """
    lists = [name for name, kind in source.carried.items() if pa.types.is_list(kind.type)]
    for rows in sides_of(source.rows):
        if isinstance(rows, Ids):
            _check_lists(table, rows, lists, columns, problems)
    table = without(table, np.arange(len(table)), problems)
    turns, left_out, unread = Counter[str](), Counter[str](), list[str]()
    sides = list[dict[str, Any]]()
    for rows in sides_of(source.rows):
        if isinstance(rows, Text):
            sides.append(of_text(table, rows)[0])
        elif isinstance(rows, Ids):
            names = {"ids": rows.column, str(rows.kind): rows.labels, **{n: n for n in lists}}
            made = {to: list_array(_flat(table[of])) for to, of in names.items() if of}
            sides.append(whole(len(table)) | made)
            if rows.split_at is not None:
                sides[-1], turns = split(made, *rows.split_at)
        else:
            assert render is not None
            read = table.select([*other_columns(rows)])
            rendered = render(read, rows.columns, isinstance(rows, Pieces))
            for row, problem in rendered.problems.items():
                problems.setdefault(row, Problem(*problem))
            sides.append(_columns(rendered.table))
            turns += rendered.turns
            if isinstance(rows, Chat):
                left_out.update(rendered.left_out)
                unread += [f"{key} of messages" for key in rendered.unread]
    made = _joined(sides) if len(sides) > 1 else sides[0]
    if "pieces" in made:  # of the other side too
        made["pieces"] = without(made["pieces"], made["row"], problems)
    return table, made, {"turns": turns, "left_out": left_out, "unread": unread}


def _columns(table: pa.Table) -> dict[str, Any]:
    """Columns of documents: arrays, and `row` in numpy."""
    columns = {name: one_array(table[name]) for name in table.column_names}
    return {**columns, "row": columns["row"].to_numpy()}


def _joined(sides: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Documents of pairs: those of both sides, as parts 0 and 1 of their rows."""
    parts = [np.full(len(side["row"]), part, np.int32) for part, side in enumerate(sides)]
    both = pa.concat_tables(
        pa.table({**side, "part": part}) for side, part in zip(sides, parts, strict=True)
    )
    return _columns(both.take(np.argsort(both["row"].to_numpy(), kind="stable")))


def _flat(column: Any) -> ListView:
    """Lists of a column; none in a row without a list."""
    array = one_array(column)
    lengths = pc.fill_null(pc.list_value_length(array), 0)
    offsets = np.append(0, np.cumsum(numpy_values(lengths))).astype(np.int32)
    return ListView(offsets, numpy_values(array.flatten()))


def _check_lists(
    table: pa.Table, rows: Ids, carried: Sequence[str], columns: Columns, problems: Problems
) -> None:
    """Add a problem to rows whose lists do not fit their ids."""
    every, wanted = np.arange(len(table)), pc.list_value_length(table[rows.column])
    for name in [rows.labels, *carried] if rows.labels else carried:
        have = pc.list_value_length(table[name])
        for row in np.flatnonzero(pc.fill_null(pc.not_equal(have, wanted), False)).tolist():
            what = f"{name!r} has {have[row]} values, expected {wanted[row]} as {rows.column!r}"
            problems.setdefault(row, Problem(columns[name].reason, what))
    if rows.kind == "labels":
        sound = without(table, every, problems)
        (offsets, ids), (_, labels) = _flat(sound[rows.column]), _flat(sound[rows.labels])
        places = np.flatnonzero((labels != NO_LOSS) & (labels != ids))
        of = np.searchsorted(offsets, places, side="right") - 1
        for row, first in zip(*np.unique(of, return_index=True), strict=True):
            place = places[first]
            found = f"{rows.labels!r} has {labels[place]} at {place - offsets[row]}"
            what = f"{found}, expected {NO_LOSS} or its token, {ids[place]}"
            problems.setdefault(int(row), Problem("bad_labels", what))


def split(lists: Mapping[str, Any], end: str, token: int) -> tuple[dict[str, Any], Counter[str]]:
    """Documents of rows that another tool packed, and how many they are, see `Batch.turns`.

    end: eos, which ends a document, or bos, which begins one; token: its id.
    """
    offsets = lists["ids"].offsets.to_numpy()
    places = np.flatnonzero(lists["ids"].values.to_numpy() == token) + (end == "eos")
    places = np.setdiff1d(places, offsets)
    inside = np.bincount(np.searchsorted(offsets, places) - 1, minlength=len(offsets) - 1)
    row = np.repeat(np.arange(len(inside)), inside + 1)
    part = np.arange(len(row)) - np.searchsorted(row, row)
    part = np.where(inside[row] == 0, WHOLE, part)
    bounds: Any = np.sort(np.concatenate([offsets, places])).astype(np.int32)
    divided = {name: pa.ListArray.from_arrays(bounds, each.values) for name, each in lists.items()}
    made = {"row": row.astype(np.int32), "part": part.astype(np.int32), **divided}
    turns = Counter(documents=len(row), split_rows=int(np.count_nonzero(inside)))
    return made, turns
