"""Conversations of role and content alone as columns, and rows composed of them by kernels.

A row that a kernel does not take, because of how it is written or of what the template asks, is
composed in Python or rendered.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from packprep.chat.rendering.expressions import Applied, Expression, Original, TextGuard
from packprep.chat.rendering.plain_kernels import (
    BEGINS,
    CONTAINS,
    ENDS,
    KEEP,
    NEWLINES,
    SPACE,
    TRUTH,
    measure_chats,
    read_chats,
    write_chats,
)
from packprep.chat.rendering.tracing import Trace
from packprep.packing.kernels.compiled import Kernel
from packprep.support.arrays import Int64, UInt8

_WORTH = 20_000  # rows; Python composes them in half a second
_LEAST_MESSAGE = 24  # bytes of JSON text of a message with role and content
_QUESTIONS = {"bool": TRUTH, "__contains__": CONTAINS, "startswith": BEGINS, "endswith": ENDS}
_STRIPPED = {"strip": (True, True), "lstrip": (True, False), "rstrip": (False, True)}


class _Kernels:
    """Loads the kernels in a thread once they are worth it: compiling takes seconds."""

    def __init__(self) -> None:
        self._rows = 0
        self._thread: threading.Thread | None = None
        self._are_ready = False

    def load(self) -> None:
        """Load them, or wait for the thread that does."""
        for each in (read_chats, measure_chats, write_chats):
            cast(Kernel, each).load()
        self._are_ready = True

    def ready(self, rows: int) -> bool:
        """True if they are loaded; starts the thread when this many rows make it worth it."""
        self._rows += rows
        if not self._are_ready and self._rows >= _WORTH and self._thread is None:
            self._thread = threading.Thread(target=self.load, name="chat kernels")
            self._thread.start()
        return self._are_ready


CHAT_KERNELS = _Kernels()
"""The kernels of this process."""


@dataclass(frozen=True, eq=False)
class PlainRows:
    """Rows of messages as columns, see `read_chats`. names: of the roles."""

    firsts: Int64
    roles: UInt8
    stops: Int64
    characters: Int64
    contents: UInt8
    names: Sequence[str]

    @staticmethod
    def read(cells: pa.Array[Any], names: Sequence[str]) -> PlainRows:
        """Read rows of JSON text. names: known roles."""
        _, offsets, data = cells.buffers()
        starts = np.frombuffer(memoryview(offsets or b""), np.int64)
        starts = starts[cells.offset : cells.offset + len(cells) + 1]
        raw = np.frombuffer(memoryview(data or b""), np.uint8)
        most = int(starts[-1] - starts[0])
        messages = most // _LEAST_MESSAGE + 1
        firsts = np.empty(len(cells) + 1, np.int64)
        roles = np.empty(messages, np.uint8)
        stops, characters = np.empty((2, messages), np.int64)
        contents = np.empty(most + 4, np.uint8)
        words, word_stops = _joined(["role", "content", *names])
        read_chats(raw, starts, words, word_stops, firsts, roles, stops, characters, contents)
        return PlainRows(firsts, roles, stops, characters, contents, names)

    def texts_of(self, row: int) -> list[str]:
        """The contents of a row."""
        first, last = int(self.firsts[row]), int(self.firsts[row + 1])
        stops = [int(self.stops[first - 1]) if first else 0, *self.stops[first:last].tolist()]
        return [self.contents[begin:stop].tobytes().decode() for begin, stop in pairwise(stops)]

    def shapes(self) -> Mapping[tuple[str, ...], Int64]:
        """Numbers of the rows with the same roles; rows without messages are in none."""
        rows: defaultdict[bytes, list[int]] = defaultdict(list)
        bounds, roles = self.firsts.tolist(), self.roles.tobytes()
        for row, (first, last) in enumerate(pairwise(bounds)):
            rows[roles[first:last]].append(row)
        rows.pop(b"", None)
        return {
            tuple(self.names[code] for code in codes): np.array(found, np.int64)
            for codes, found in rows.items()
        }


class Composition:
    """Texts and trained spans of many rows, written by several `Tables`.

    sizes: bytes of each row; -1 for a row that none of them takes. spans: of each row. done: of
    each row, True if its text is written and final.
    """

    def __init__(self, sizes: Int64, spans: Int64) -> None:
        self.offsets = np.append(0, np.cumsum(np.maximum(sizes, 0)))
        self.span_offsets = np.append(0, np.cumsum(2 * spans)).astype(np.int32)
        self.text = np.empty(int(self.offsets[-1]), np.uint8)
        self.trained = np.empty(int(self.span_offsets[-1]), np.int32)
        self.done = np.zeros(len(sizes), np.bool_)

    def bytes_of(self, row: int) -> memoryview:
        """The text of a row in UTF-8."""
        return self.text.data[self.offsets[row] : self.offsets[row + 1]]

    def text_of(self, row: int) -> str:
        """The text of a row."""
        return str(self.bytes_of(row), "utf-8")

    def arrays(self) -> tuple[pa.Array[Any], pa.Array[Any]]:
        """Texts and trained positions of all rows; those of rows not done are of no use."""
        buffers: Any = (self.offsets, self.text)
        offsets, text = map(pa.py_buffer, buffers)
        texts: Any = pa.LargeStringArray.from_buffers(len(self.done), offsets, text)
        trained: Any = pa.ListArray.from_arrays(
            pa.array(self.span_offsets, pa.int32()), pa.array(self.trained)
        )
        return texts, trained


class Tables:
    """A trace and its trained spans as the arrays that kernels take.

    bounds: of the spans, each as values of the trace before it and characters of the template.
    beginnings: of special tokens; specials: their number in the template's own text. is_clear: a
    row without a sign with which one begins in its texts has no others.
    """

    def __init__(
        self,
        trace: Trace,
        bounds: Sequence[tuple[int, int]],
        beginnings: Sequence[str],
        specials: int,
        is_clear: bool,
    ) -> None:
        self.spans = len(bounds) // 2
        self._bounds = np.array(bounds, np.int64).ravel()
        self._most, self._specials = trace.most, specials
        self._literals, self._literal_stops = _joined(trace.literals)
        self._tokens, self._token_stops = _joined(beginnings)
        signs = sorted({beginning.encode()[0] for beginning in beginnings})
        counts = [int(np.count_nonzero(self._literals == sign)) for sign in signs]
        self._signs = np.array([*zip(signs, counts, strict=True)], np.int64).ravel()
        self._is_clear = is_clear
        self._values = np.array([_stripping(value) for value in trace.values], np.int64).ravel()
        self._parts, stops = _joined("".join(guard.operands[1:]) for guard in trace.guards)
        spans = zip([0, *stops.tolist()], stops.tolist(), strict=False)
        guards = [
            (_QUESTIONS[guard.name], guard.operands[0].number, *span, guard.answer)
            for guard, span in zip(trace.guards, spans, strict=True)
        ]
        self._guards = np.array(guards, np.int64).ravel()

    @staticmethod
    def can_hold(trace: Trace, beginnings: Sequence[str]) -> bool:
        """True if kernels can take all guards and values of a trace, and the special tokens.

        Where texts are stripped, no text of the template may begin with white space: it could be
        taken for that of the text before it.
        """
        kinds = [_stripping(value) for value in trace.values]
        strips = any(kind is not None and kind[1:] != (KEEP, KEEP) for kind in kinds)
        is_clear = all(each and not each[0].isspace() for each in trace.literals[1:])
        return (
            None not in kinds
            and all(map(_is_simple, trace.guards))
            and bool(beginnings)
            and (is_clear or not strips)
        )

    def measure(self, plain: PlainRows, rows: Int64) -> Int64:
        """Bytes of composed rows; -1 where a guard does not hold."""
        sizes = np.empty(len(rows), np.int64)
        measure_chats(
            rows,
            plain.firsts,
            plain.stops,
            plain.characters,
            plain.contents,
            self._guards,
            self._parts,
            self._values,
            len(self._literals),
            self._most,
            sizes,
        )
        return sizes

    def write(self, plain: PlainRows, rows: Int64, composition: Composition) -> None:
        """Compose rows; those in which a text might spell a special token are not done."""
        write_chats(
            rows,
            plain.firsts,
            plain.stops,
            plain.characters,
            plain.contents,
            self._literals,
            self._literal_stops,
            self._values,
            self._bounds,
            self._tokens,
            self._token_stops,
            self._signs,
            self._is_clear,
            self._specials,
            composition.offsets,
            composition.span_offsets,
            composition.text,
            composition.trained,
            composition.done,
        )


def _joined(texts: Iterable[str]) -> tuple[UInt8, Int64]:
    """UTF-8 bytes of texts, one after the other, and the end of each."""
    parts = [text.encode() for text in texts]
    stops = np.cumsum([len(part) for part in parts], dtype=np.int64)
    return np.frombuffer(b"".join(parts), np.uint8), stops


def _stripping(value: Expression) -> tuple[int, int, int] | None:
    """Number of a text, and what is stripped on its left and right; None for other expressions.

    Without rstrip("\\n"), which forms do not know.
    """
    if isinstance(value, Original):
        return value.number, KEEP, KEEP
    if (
        not isinstance(value, Applied)
        or not isinstance(value.owner, Original)
        or value.name not in _STRIPPED
        or value.arguments not in ((), (None,), ("\n",))
    ):
        return None
    how = NEWLINES if value.arguments == ("\n",) else SPACE
    left, right = _STRIPPED[value.name]
    if how == NEWLINES and not left:
        return None
    return value.owner.number, how if left else KEEP, how if right else KEEP


def _is_simple(guard: TextGuard) -> bool:
    """True for a question about one text and a constant that kernels can ask."""
    text, *others = guard.operands
    return (
        guard.name in _QUESTIONS
        and isinstance(text, Original)
        and [type(other) for other in others] == [str] * (guard.name != "bool")
    )
