"""Errors that packprep raises on purpose.

The command line prints the sentence and exits with the class's code.

PackprepError(ValueError)
├── ConfigError  an option or argument is wrong
├── InputError   a source, a document or a tokenizer is wrong: names the file and, where there is
                 one, the row
└── StoppedError the machine stopped the build (memory, disk, a dying worker): the same command
                 resumes it
packprep.schemas.FormatError(ValueError)  a file packprep wrote is damaged or is not what it claims
                                          to be
"""

import contextlib
import difflib
import errno
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from packprep.schemas.storage.store_errors import StoreError
from packprep.support.redact import redacted

# A command that the sentence suggests keeps its flags.
_FLAGS = re.compile(r"packprep [a-z][^;,]*|(?<![^\s(])(?:-o|--[a-z][a-z-]*)\b")


class PackprepError(ValueError):
    """Base of the errors that are a sentence for the user, never a defect of packprep.

    The sentence has no credentials. A long one, which quotes its input, is cut in the middle.
    """

    def __init__(self, sentence: str) -> None:
        if len(sentence) > 50_000:
            sentence = f"{sentence[:20_000]} ... {sentence[-20_000:]}"
        shown = redacted(sentence)
        super().__init__(shown if len(shown) <= 2000 else f"{shown[:1500]} ... {shown[-400:]}")


class ConfigError(PackprepError):
    """An option has a value that cannot work, or contradicts another one.

    Sentences write options as flags, --max-length. `str` spells them as Python does, max_length,
    and the command line as the user did.
    """

    def __str__(self) -> str:
        return self.as_typed(lambda option: option != "to")  # Python's export has a format

    def as_typed(self, is_key: Callable[[str], bool]) -> str:
        """The sentence with options spelled as typed.

        is_key: true for an option that is a keyword or a key in YAML, rather than a flag.
        """

        def spelled(match: re.Match[str]) -> str:
            option = "output" if match[0] == "-o" else match[0].lstrip("-").replace("-", "_")
            key = option.removeprefix("no_")
            if match[0][0] != "-" or not is_key(key):
                return match[0]
            return option if key == option else f"{key} false"

        return _FLAGS.sub(spelled, super().__str__())


class InputError(PackprepError):
    """A source file, a document or a tokenizer file cannot be used as it is."""


class StoppedError(PackprepError):
    """The build cannot resume as things are on this machine.

    Finished work is kept for the same command.
    """


@contextlib.contextmanager
def asked(kind: type[PackprepError] = ConfigError) -> Iterator[None]:
    """Handle errors of the first request to a store.

    An error that a retry does not fix is raised as `kind`.
    """
    try:
        yield
    except ImportError as error:
        raise kind(str(error)) from None
    except StoreError as error:
        if error.errno not in (errno.EACCES, errno.ENOENT, errno.EINVAL):
            raise
        advice = (
            "check the address and the credentials"
            if error.errno == errno.EACCES
            else "check the address"
        )
        raise kind(f"{error.filename}: {error.strerror}; {advice}") from None


def nearest(word: str, known: Iterable[str]) -> str:
    """End of a sentence: "; did you mean 'best_fit'?", or the list if no word is similar."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f", expected one of {', '.join(known)}"


_SYSTEM = (
    errno.EIO,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ESTALE,
    errno.ETIMEDOUT,
)


def system_error(error: BaseException | None) -> OSError | None:
    """Error of the system or of a store that caused a library's error; None if neither did."""
    while error is not None:
        if isinstance(error, OSError) and (error.errno in _SYSTEM or isinstance(error, StoreError)):
            return error
        error = error.__cause__ or error.__context__
    return None


def brief(value: Any) -> str:
    """`repr` of a value, cut to 100 characters."""
    try:
        text = reprlib.repr(value)
    except ValueError:  # Python does not print numbers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 100 else text[:97] + "..."
