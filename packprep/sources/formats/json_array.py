"""The elements of a JSON array one by one.

What is in memory is a block of the file and the longest element.

An element that is not JSON ends the reading, skipped rows or not: where it ends, and with it every
row behind it, cannot be told. The sentence names its row.
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
    """An array in `file`, of which `block`, with the bracket that opens it, is read already.

    Iterates over (element, its characters). limit: bytes of an element at most. source: the file,
    for InputError.
    """

    def __init__(
        self, block: bytes, file: Any, decoder: json.JSONDecoder, limit: int, source: str
    ) -> None:
        self._file, self._decoder, self._limit, self._source = file, decoder, limit, source
        # A byte that is not UTF-8 comes as a lone surrogate, so that it is a finding of its row
        # alone.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._text = self._utf8.decode(block)
        self._at = self._text.index("[") + 1
        self._ended = False
        self._row = 0

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        closed = self._next_sign() == "]"
        self._at += closed
        while not closed:
            start, value = self._element()
            yield value, self._at - start
            sign = self._next_sign()
            self._at += 1
            self._row += 1
            if sign not in ("]", ","):
                raise self._wrong("a comma or the end of the array is missing before it")
            closed = sign == "]"
        if self._next_sign():
            raise self._wrong("something follows the end of the array")

    def _element(self) -> tuple[int, Any]:
        """Begin of the next element, and its value; `_at` is behind it then."""
        while True:
            self._next_sign()
            start = self._at
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
                        else error
                    )
                    raise self._wrong(f"it is not JSON: {reason}{where}") from None
            else:
                if self._ended or self._text[end : end + 1] not in (
                    "",
                    ".",
                    "e",
                    "E",
                ):  # 12 and 1. may be half of 1.5
                    self._at = end
                    return start, value
            if len(self._text) - start > self._limit:
                raise self._wrong(
                    f"it is not JSON, or has more than {self._limit:,} bytes (--max-row-size)"
                )
            self._read()

    def _next_sign(self) -> str:
        """The next character that is no white space, where `_at` is then.

        Nothing at the end of the file.
        """
        while True:
            found = _SPACE.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._text) or self._ended:
                return self._text[self._at : self._at + 1]
            self._read()

    def _read(self) -> None:
        """As much again as is in hand, so that a long element is looked at a few times only."""
        block = self._file.read(max(BLOCK_CHARACTERS, len(self._text) - self._at))
        self._ended = not block
        self._text, self._at = self._text[self._at :] + self._utf8.decode(block, self._ended), 0

    def _wrong(self, what: str) -> InputError:
        return InputError(
            f"{self._source} row {self._row}: {what}; fix it, as no row after it can be found in "
            "an array"
        )
