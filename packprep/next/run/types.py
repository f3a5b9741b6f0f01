"""Values of the room: a job and its tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..config.options import BuildConfig
from ..plan.types import Window
from ..read.types import Source, Split
from ..tokens.tokenizer import Tokenizer


class Task(NamedTuple):
    """tokenize: a split, by its number. pack: a window, by its place in the list of windows."""

    kind: Literal["tokenize", "pack"]
    number: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command as a value: a pure function of the options and of the files that they name.

    sources, splits: empty for `pack STORE`. entries: folders of token files; for build and tokenize
    the one that its tasks write. staging: folder in which the output is made; None for tokenize.
    inputs: all that decides the bytes of the output; identity is their digest.
    """

    config: BuildConfig
    sources: tuple[Source, ...]
    splits: tuple[Split, ...]
    tokenizer: Tokenizer
    entries: tuple[Path, ...]
    staging: Path | None
    inputs: Mapping[str, Any]
    identity: str


@dataclass(frozen=True, kw_only=True)
class Planned:
    """The windows of a job, known once all its token files are there. made_from: their digest."""

    windows: tuple[Window, ...]
    made_from: str
