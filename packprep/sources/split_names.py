"""Splits that names of files and folders say, as those of a dataset on the hub do.

    data/train-00000-of-00002.parquet   train
    data/test/part.jsonl                test
    corpus_dev.jsonl                    validation
    latest.jsonl, training.jsonl        none

A split is a word of `_SPLITS` with no letter beside it. The name of the file decides, else that of
the nearest folder with a split. A name of two splits says none.
"""

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from packprep.support.errors import InputError

ALL = "all"
"""Chooses all files, whatever their names say."""
_SPLITS = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "eval": "eval",
}
_WORD = re.compile(rf"(?<![^\W\d_])({'|'.join(_SPLITS)})(?![^\W\d_])", re.IGNORECASE)

_File = TypeVar("_File")


def split_in_name(path: str) -> str | None:
    """The split that a path says, with / between its names; None for none."""
    for name in reversed(path.split("/")):
        splits = {_SPLITS[word.lower()] for word in _WORD.findall(name)}
        if len(splits) == 1:
            return splits.pop()
    return None


def of_splits(
    files: Mapping[str, _File], where: str, asked: str | None, say: Callable[[str], None]
) -> list[_File]:
    """The files of the splits that are asked for, in order.

    files: by their path inside of the folder or glob `where`. asked: splits with + between them, or
    ALL; None for a user who has not chosen. Raises InputError if files of several splits would be
    read without a choice, or if a split is missing. Files of no split that are left out are said.
    """
    splits = {path: split_in_name(path) for path in files}
    named: dict[str, list[str]] = {}
    for path, split in splits.items():
        named.setdefault(split or "", []).append(path)
    rest = named.pop("", [])
    if asked == ALL or (asked is None and len(named) < 2):
        return [*files.values()]
    if asked is None:
        one = "train" if "train" in named else min(named)
        raise InputError(
            f"{where} holds files of several splits: {_listed(named)}; choose one, such as "
            f"{where}#{one}, or read all files with {where}#{ALL}"
        )
    chosen = {_SPLITS.get(word, word): word for word in asked.split("+")}
    if missing := [word for split, word in chosen.items() if split not in named]:
        has = _listed(named) if named else "no file with a split in its name"
        raise InputError(
            f"{where} has no split {missing[0]!r}; it has {has}: choose one of its splits, "
            f"or read all files with {where}#{ALL}"
        )
    if rest:
        say(
            f"{where}#{asked}: {_some(rest)} has no split in its name, and is not read; name it as "
            "a separate source to read it"
        )
    return [file for path, file in files.items() if splits[path] in chosen]


def _listed(named: Mapping[str, list[str]]) -> str:
    return ", ".join(f"{split} ({_some(paths)})" for split, paths in sorted(named.items()))


def _some(paths: list[str]) -> str:
    """The first of these paths, and the number of others."""
    return paths[0] + (f" and {len(paths) - 1:,} more" if len(paths) > 1 else "")
