"""Names of sources and tokenizers: what can be told from the name alone.

hub:ORG/SET[:NAME][@REVISION][#SPLIT] is a dataset on the hub, and NAME@REVISION a tokenizer there.
Names of local files are never split. Files of token ids need no `input_ids_column`: it is then
"input_ids".
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

TOKEN_ENDINGS = ("bin", "idx", "npy", "ds")
_TOKENIZER_ENDINGS = (".json", ".model", ".tiktoken")
IDS_COLUMN = "input_ids"
HUB_PREFIX = "hub:"
_HUB_NAME = re.compile(rf"{HUB_PREFIX}([^:@#]+)(?::([^:@#]+))?(?:@([^#]+))?(?:#(.+))?")
_TOKENIZER_NAME = re.compile(r"([\w.-]+(?:/[\w.-]+)?)@(.+)")  # not https://user:password@host


class HubPart(NamedTuple):
    """The part of a dataset that is asked for."""

    split: str | None = None
    name: str | None = None
    revision: str | None = None

    def or_else(self, other: "HubPart") -> "HubPart":
        """The same, with the values of `other` where it has none."""
        return HubPart(*(own or of for own, of in zip(self, other, strict=True)))


def hub_name(source: str) -> tuple[str, HubPart] | None:
    """The dataset that a name with `hub:` means, and the part of it; None for a wrong name.

    A name without `hub:` is the dataset itself.

    >>> hub_name("hub:org/set:en@v1#train[:10%]")
    ('org/set', HubPart(split='train[:10%]', name='en', revision='v1'))
    """
    if not source.startswith(HUB_PREFIX):
        return source, HubPart()
    if (match := _HUB_NAME.fullmatch(source)) is None:
        return None
    dataset, name, revision, split = match.groups()
    return dataset, HubPart(split, name, revision)


def is_local_tokenizer(name: str) -> bool:
    """True if a tokenizer is a local path, there or not, rather than a name on the hub."""
    path = Path(name)
    return path.exists() or path.suffix in _TOKENIZER_ENDINGS or name.startswith((".", "/", "~"))


def hub_tokenizer(name: str) -> tuple[str, str | None]:
    """Name and revision of a tokenizer; None for a local one, and for one without a revision."""
    match = None if is_local_tokenizer(name) else _TOKENIZER_NAME.fullmatch(name)
    return (name, None) if match is None else (match[1], match[2])


def at_revision(tokenizer: Any, revision: str | None) -> Any:
    """The name of a tokenizer with its revision; local ones and objects have none."""
    if not revision or not isinstance(tokenizer, str) or is_local_tokenizer(tokenizer):
        return tokenizer
    return tokenizer if hub_tokenizer(tokenizer)[1] else f"{tokenizer}@{revision}"


def names_token_files(paths: Iterable[str]) -> bool:
    """True if a path is a file of token ids, or Megatron's name for a .bin and its .idx.

    Splits that follow a # are not looked at.
    """
    endings = tuple(f".{ending}" for ending in TOKEN_ENDINGS)
    local = [path for path in paths if not path.startswith(HUB_PREFIX)]
    local += [path.rpartition("#")[0] for path in local if "#" in path]
    return any(path.endswith(endings) or _is_prefix(path) for path in local)


def _is_prefix(path: str) -> bool:
    try:
        return Path(f"{path}.idx").is_file() and not Path(path).exists()
    except OSError:  # a name that is too long; reading it says so
        return False
