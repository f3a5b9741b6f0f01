"""Errors that packprep raises on purpose; the command line prints the sentence and exits.

PackprepError(ValueError)
├── ConfigError  an option or argument is wrong
├── InputError   a source, a document or a tokenizer is wrong: names the file and the row
└── StoppedError the machine stopped the build (memory, disk): the same command resumes it
schemas.files.FormatError(ValueError)  a file of packprep is damaged, or is not what it claims
"""

import difflib
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

_HIDDEN = "***"
# Repetitions have bounds: the time must not grow with the square of a long message.
_SECRETS = (
    # https://user:password@host and https://token@host, but not https://host/name@revision
    (
        re.compile(r"(?<=[\w+.-]{2})(:/{1,2})(?:[^\s/@]{0,500}:\S{0,2000}|[^\s/@]{0,2000})@"),
        rf"\1{_HIDDEN}@",
    ),
    # all parameters of an address: any of them may be a signature
    (re.compile(r"(?<=[\w+.-]{2})(:/{1,2}[^\s?#'\"]{0,2000})[?#][^\s'\"]+"), rf"\1?{_HIDDEN}"),
    (re.compile(r"\b(Bearer|Basic)\s{1,9}[\w.~+/=-]{8,}", re.I), rf"\1 {_HIDDEN}"),
    (re.compile(r"\b(hf_|gh[a-z]_|sk-|AKIA|ASIA)[A-Za-z0-9_-]{16,}"), rf"\1{_HIDDEN}"),
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_FLAGS = re.compile(r"packprep [a-z][^;,]*|(?<![^\s(])(?:-o|--[a-z][a-z-]*)\b")


class PackprepError(ValueError):
    """Base of the errors that are a sentence for the user, never a defect of packprep.

    The sentence has no credentials; a long one is cut in the middle.
    """

    def __init__(self, sentence: str) -> None:
        if len(sentence) > 50_000:
            sentence = f"{sentence[:20_000]} ... {sentence[-20_000:]}"
        shown = redacted(sentence)
        super().__init__(shown if len(shown) <= 2000 else f"{shown[:1500]} ... {shown[-400:]}")


class ConfigError(PackprepError):
    """An option has a value that cannot work, or contradicts another one.

    Sentences write options as flags, --max-length; `str` has them as Python does, max_length. The
    command line prints `flags`.
    """

    @property
    def flags(self) -> str:
        """The sentence with options as flags."""
        return super().__str__()

    def __str__(self) -> str:
        def spelled(match: re.Match[str]) -> str:
            if match[0].startswith("packprep "):
                return match[0]  # a command that the sentence suggests keeps its flags
            return "output" if match[0] == "-o" else match[0].lstrip("-").replace("-", "_")

        return _FLAGS.sub(spelled, super().__str__())


class InputError(PackprepError):
    """A source file, a document or a tokenizer file cannot be used as it is."""


class StoppedError(PackprepError):
    """The build cannot go further as things are on this machine; finished work is kept."""


class Stopping(BaseException):
    """The process is to end at once: it waits for none of its threads. code: its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def redacted(text: str) -> str:
    """`text` on one line and without credentials.

    >>> redacted("s3://key:secret@bucket/a.jsonl?X-Amz-Signature=abc is no file")
    's3://***@bucket/a.jsonl?*** is no file'
    """
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def nearest(word: str, known: Iterable[str]) -> str:
    """End of a sentence: "; did you mean 'best_fit'?", or the list if no word is similar."""
    known = list(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f", expected one of {', '.join(known)}"


def listed(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are: "a, b and 3 more"."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def brief(value: Any) -> str:
    """`repr` of a value, cut to 100 characters."""
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python does not print numbers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 100 else text[:97] + "..."
