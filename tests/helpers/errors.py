"""Errors of the product in tests: the class, and the names and figures of the sentence.

The whole sentences are on the page docs/reference/errors.md, which a test compares with the source.
"""

import contextlib
import re
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def refused(kind: type[BaseException], *words: str | int) -> Iterator[None]:
    """Expect an error of this class, with these words and numbers in its sentence.

    A number is found as 1042 and as 1,042, and not inside of another number.
    """
    with pytest.raises(kind) as caught:
        yield
    assert_says(str(caught.value), *words)


def assert_says(sentence: str, *words: str | int) -> None:
    """Expect these words and numbers in a sentence."""
    missing = [word for word in words if not _has(sentence, word)]
    assert not missing, f"{missing} not in: {sentence}"


def _has(sentence: str, word: str | int) -> bool:
    if isinstance(word, str):
        return word in sentence
    return re.search(rf"(?<![\d.,])({word}|{word:,})(?![\d]|[.,]\d)", sentence) is not None
