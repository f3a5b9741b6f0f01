"""Elements of a JSON array, one by one.

Only a block of the file and the longest element are in memory.

Reading stops at an element that is not JSON, even where bad rows are skipped: its end is unknown,
and so is every row after it. The error names its row.
"""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from packprep.support.errors import InputError

BLOCK_CHARACTERS = 8 << 20
_SPACE = re.compile(r"[ \t\n\r]*")


class JsonArray:
    """An array in a file.

    Iterates over (element, number of its characters).
    block: beginning of the file, already read, with the opening bracket.
    limit: bytes of an element at most.
    source: the file, for InputError.
    """

    def __init__(
        self, block: bytes, file: Any, decoder: json.JSONDecoder, limit: int, source: str
    ) -> None:
        self._file, self._decoder, self._limit, self._source = file, decoder, limit, source
        # A byte that is not UTF-8 becomes a lone surrogate: a problem of its row alone.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = self._utf8.decode(block)
        self._place = self._text.index("[") + 1
        self._ended = False
        self._row = 0

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        closed = self._next_sign() == "]"
        self._place += closed
        while not closed:
            start, value = self._element()
            yield value, self._place - start
            sign = self._next_sign()
            self._place += 1
            self._row += 1
            if sign not in ("]", ","):
                raise self._wrong("expected a comma or the end of the array before it")
            closed = sign == "]"
        if self._next_sign():
            raise self._wrong("text follows the end of the array")

    def _element(self) -> tuple[int, Any]:
        """Begin of the next element, and its value; moves to its end."""
        while True:
            self._next_sign()
            start = self._place
            try:
                value, end = self._decoder.raw_decode(self._text, start)
            except (ValueError, RecursionError) as error:
                if self._ended or isinstance(error, RecursionError):
                    where = (
                        f" at character {error.pos - start}"
                        if isinstance(error, json.JSONDecodeError)
                        else ""
                    )
                    reason = (
                        error.msg.removesuffix(" at")
                        if isinstance(error, json.JSONDecodeError)
                        else "nested too deeply"
                        if isinstance(error, RecursionError)
                        else error
                    )
                    raise self._wrong(f"invalid JSON: {reason}{where}") from None
            else:
                # At the end of a block, 12 may be the beginning of 123, and 1. that of 1.5.
                if self._ended or self._text[end : end + 1] not in ("", ".", "e", "E"):
                    self._place = end
                    return start, value
            if len(self._text) - start > self._limit:
                raise self._wrong(
                    f"invalid JSON, or more than {self._limit:,} bytes (--max-row-size)"
                )
            self._read()

    def _next_sign(self) -> str:
        """Move to the next character that is not white space and return it.

        An empty string at the end of the file.
        """
        while True:
            spaces = _SPACE.match(self._text, self._place)
            assert spaces is not None
            self._place = spaces.end()
            if self._place < len(self._text) or self._ended:
                return self._text[self._place : self._place + 1]
            self._read()

    def _read(self) -> None:
        """Read as much as is left, so that a long element is parsed only a few times."""
        block = self._file.read(max(BLOCK_CHARACTERS, len(self._text) - self._place))
        self._ended = not block
        self._text, self._place = (
            self._text[self._place :] + self._utf8.decode(block, self._ended),
            0,
        )

    def _wrong(self, fault: str) -> InputError:
        return InputError(
            f"{self._source} row {self._row}: {fault}; fix it, as no row after it can be found "
            "in an array"
        )
