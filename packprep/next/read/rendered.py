"""Documents of rows of chats, of pieces and of pairs."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..config.grammar import IdColumns
from ..config.options import BuildConfig
from .types import Chat, Ids, Pairs, Pieces, Render, Text
from .values import NESTED, Kind, Problem


def nested_columns(rows: Chat | Pieces) -> dict[str, Kind]:
    """Columns that the rows need, those that are read beside a conversation included."""
    if isinstance(rows, Pieces):
        return {rows.column: NESTED}
    from ..chat.conversations import PICTURES, beside

    optional = NESTED._replace(is_beside=True)
    columns = dict.fromkeys(beside(rows.columns), optional)
    columns |= dict.fromkeys(PICTURES, optional._replace(reason="named"))
    return columns | dict.fromkeys(rows.columns, NESTED)


def rendered(
    table: pa.Table, rows: Chat | Pieces, render: Render, problems: dict[int, Problem]
) -> tuple[dict[str, Any], Any]:
    """Row, part and pieces of the documents of a table, and what the renderer counts.

    problems: gets those of rows that cannot be rendered.
    """
    names = rows.columns if isinstance(rows, Chat) else (rows.column,)
    made = render(table.select([*nested_columns(rows)]), names, isinstance(rows, Pieces))
    for row, problem in made.problems.items():
        problems.setdefault(row, Problem(*problem))
    columns = {name: made.table[name].combine_chunks() for name in made.table.column_names}
    return {**columns, "row": columns["row"].to_numpy()}, made


def joined(sides: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Documents of pairs: those of both sides, as parts 0 and 1 of their rows."""
    parts = [np.full(len(side["row"]), part, np.int32) for part, side in enumerate(sides)]
    both = pa.concat_tables(
        pa.table({**side, "part": part}) for side, part in zip(sides, parts, strict=True)
    )
    taken = both.take(np.argsort(both["row"].to_numpy(), kind="stable"))
    columns = {name: taken[name].combine_chunks() for name in taken.column_names}
    return {**columns, "row": columns["row"].to_numpy()}


def pairs_of(config: BuildConfig, vocab_size: int) -> Pairs:
    """The two sides of pairs: of text, of conversations, or of what another option says."""
    *prompt, first, second = str(config.pairs).split(",")
    if config.ids is not None:
        asked = IdColumns.parse(config.ids, pairs=True)
        labels = (*asked.columns[1:], None, None)
        ids = partial(Ids, kind=asked.kind, vocab_size=vocab_size)
        return Pairs((ids(first, labels[0]), ids(second, labels[1])))
    if config.pieces is not None:
        return Pairs((Pieces(first), Pieces(second)))
    if prompt or config.messages is not None:
        return Pairs((Chat((*prompt, first)), Chat((*prompt, second))))
    return Pairs((Text(first), Text(second)))
