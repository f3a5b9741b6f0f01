"""The parts of a row that are encoded by themselves, and how they become one document.

They travel as one row: `text` is the text of all, and the column `parts` has the size of each, and
the ids of those that are token ids. `split_parts` makes the texts rows of their own, right before
they are encoded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.chat.conversations import JSON_CELLS, BadRowError, cells_of, parsed_json
from packprep.chat.masks import RENDERED, ChatTokens, as_row, rendered_table
from packprep.chat.pieces.pieces import as_rendered, read_pieces, runs_of
from packprep.chat.turns import RowPart
from packprep.engines.backends import Ids
from packprep.support.problems import Problem

_TEXT = pa.schema([RENDERED.field(name) for name in ("text", "trained", "specials")])


def render_pieces(table: pa.Table, column: str, vocab_size: int, *, joined: bool) -> pa.Table:
    """Rows of pieces as text: a table of schema RENDERED, [rows]. joined: see pieces.py."""
    where, is_json, rows = repr(column), table[column].type == JSON_CELLS, []
    for cell in cells_of(table[column]):
        try:
            value = parsed_json(json.loads(cell or "null") if is_json else cell, where)
            runs = runs_of(read_pieces(value, where, vocab_size), joined=joined)
        except BadRowError as error:
            rows.append(as_row(Problem(error.reason, str(error))))
        else:
            rows.append(as_row(as_rendered(runs, lambda _: None)))
    return rendered_table(rows)


@dataclass(frozen=True)
class SplitParts:
    """Rows divided into parts.

    texts: text, trained and specials of RENDERED, a row for each part that is text. rows: the row
    of each of them, int64 [texts].
    ids: of each part, None for text; in the order of the rows. row_of: the row of each part, int64
    [parts]. Both are None if every row is one text.
    """

    texts: pa.Table
    rows: NDArray[np.int64]
    ids: Sequence[tuple[Ids, NDArray[np.bool_]] | None] | None = None
    row_of: NDArray[np.int64] | None = None

    def joined(self, encoded: ChatTokens, rows: int) -> ChatTokens:
        """The tokens of the rows. encoded: of the texts.

        A row has no tokens if one of its texts has a problem.
        """
        if self.ids is None or self.row_of is None:
            return encoded
        is_text = np.array([part is None for part in self.ids], np.bool_)
        sizes = np.array([0 if part is None else len(part[0]) for part in self.ids], np.int64)
        sizes[is_text] = np.diff(encoded.offsets)
        problems = {
            int(self.rows[text]): each
            for text, each in sorted(encoded.problems.items(), reverse=True)
        }
        of_text = np.repeat(is_text, sizes)
        ids, trained = np.empty(len(of_text), np.int32), np.empty(len(of_text), np.bool_)
        given = [part for part in self.ids if part is not None]
        ids[of_text], trained[of_text] = encoded.ids, encoded.trained
        ids[~of_text] = np.concatenate([encoded.ids[:0], *(own for own, _ in given)])
        trained[~of_text] = np.concatenate([encoded.trained[:0], *(own for _, own in given)])
        kept = np.repeat(~np.isin(self.row_of, [*problems]), sizes)
        counts = np.bincount(np.repeat(self.row_of, sizes)[kept], minlength=rows)
        offsets = np.append(0, np.cumsum(counts, dtype=np.int64))
        return ChatTokens(ids[kept], offsets, trained[kept], problems)


def split_parts(rendered: pa.Table) -> SplitParts:
    """Divide rendered rows into the parts that are encoded by themselves."""
    every = np.arange(len(rendered), dtype=np.int64)
    if rendered["parts"].null_count == len(rendered):
        return SplitParts(rendered, every)
    texts: list[tuple[str | None, list[int] | None, list[int] | None]] = []
    rows: list[int] = []
    row_of: list[int] = []
    given: list[tuple[Ids, NDArray[np.bool_]] | None] = []
    columns = (rendered[name].to_pylist() for name in ("text", "trained", "specials", "parts"))
    for row, (text, trained, specials, parts) in enumerate(zip(*columns, strict=True)):
        if parts is None or text is None:
            parts = [RowPart(size=len(text or ""), trained=trained, specials=specials, ids=None)]
        end = 0
        for part in parts:
            start, end = end, end + part["size"]
            row_of.append(row)
            given.append(None if part["ids"] is None else _given(part))
            if part["ids"] is None:
                rows.append(row)
                texts.append((text and text[start:end], part["trained"], part["specials"]))
    table = pa.Table.from_arrays(
        [
            pa.array([each[place] for each in texts], field.type)
            for place, field in enumerate(_TEXT)
        ],
        schema=_TEXT,
    )
    return SplitParts(table, np.array(rows, np.int64), given, np.array(row_of, np.int64))


def _given(part: RowPart) -> tuple[Ids, NDArray[np.bool_]]:
    """Ids of a part and their mask."""
    ids = np.array(part["ids"], np.int32)
    mask = np.full(len(ids), part["trained"] is None)
    spans = part["trained"] or ()
    for start, stop in zip(spans[::2], spans[1::2], strict=True):
        mask[start:stop] = True
    return ids, mask
