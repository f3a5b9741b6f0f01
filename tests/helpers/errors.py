"""Errors of the product in tests: the class, and the names and figures of the sentence."""

import contextlib
import re
from collections.abc import Iterator, Sequence

import pytest


@contextlib.contextmanager
def refused(kind: type[BaseException], *words: str) -> Iterator[None]:
    """Expect an error of this class, with these words in its sentence."""
    with pytest.raises(kind) as caught:
        yield
    assert [word for word in words if word not in str(caught.value)] == []


def unsaid(sentence: str, words: Sequence[str]) -> list[str]:
    """Words that are not in a sentence; a number is there as 1042 or 1,042, not in another one."""
    plain = sentence.replace(",", "")
    number = r"(?<![\d.])({})(?!\d|\.\d)"
    return [
        word
        for word in words
        if not (re.search(number.format(word), plain) if word.isdigit() else word in sentence)
    ]
