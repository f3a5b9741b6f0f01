"""The guard of a fast engine for a tokenizer: known, cached, or found by a sweep.

A guard holds for one swept tokenizer, one version of the engine and one of `tokenizers`. Guards for
the pre-tokenizers of well-known models are in known_guards.json, written by
scripts/checks/known_guards.py. Others are found once, in about 2 CPU-seconds, and cached in the
user's cache folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypedDict

from packprep.engines import sweep
from packprep.engines.backends import Engine
from packprep.engines.guard import Guard
from packprep.support.errors import InputError
from packprep.support.user_cache import cache_folder, keep

KNOWN = Path(__file__).with_name("known_guards.json")

Load = Callable[[str, bytes], Engine]


def guard_for(fast: Engine, tokenizer_json: bytes, load: Load) -> Guard | None:
    """Code points that the reference must encode, without those that no sweep tries.

    None if the engine differs on too many. load: loads an engine for a tokenizer. Raises InputError
    if an engine cannot encode a text of the sweep.
    """
    parts = sweep.splitting(tokenizer_json)
    versions = {"engine": f"{fast.name} {fast.version}", "tokenizers": _reference_version()}
    known = _known(parts, **versions) if parts is not None else None
    if known is not None:
        return known
    swept = tokenizer_json if parts is None else sweep.swept_tokenizer(parts)
    path = _cache_file(swept, **versions)
    if (guard := _cached(path)) is None:
        guard = _found(fast, swept, tokenizer_json, load)
        if guard is not None:
            keep(path, f"{guard}\n".encode())
    return guard


def _found(fast: Engine, swept: bytes, tokenizer_json: bytes, load: Load) -> Guard | None:
    """Guard found by a sweep, with the tokenizer itself if the engine cannot read the swept one."""
    if swept != tokenizer_json:
        try:
            return sweep.find_guard(load(fast.name, swept), load("hf", swept))
        except InputError:
            pass
    return sweep.find_guard(fast, load("hf", tokenizer_json))


class KnownGuard(TypedDict):
    """An entry of known_guards.json.

    models: for people. splitting: see `sweep.splitting`. tokenizers: its version. guards: by engine
    and version.
    """

    models: str
    splitting: dict[str, object]
    tokenizers: str
    guards: dict[str, str]


def _known(parts: Mapping[str, object], engine: str, tokenizers: str) -> Guard | None:
    for entry in known_guards():
        if entry["tokenizers"] == tokenizers and entry["splitting"] == parts:
            text = entry["guards"].get(engine)
            return None if text is None else Guard.from_text(text)
    return None


@lru_cache(maxsize=1)
def known_guards() -> list[KnownGuard]:
    """Entries of known_guards.json."""
    known: list[KnownGuard] = json.loads(KNOWN.read_bytes())
    return known


def _reference_version() -> str:
    return importlib.metadata.version("tokenizers")


def _cache_file(swept: bytes, engine: str, tokenizers: str) -> Path:
    """The name depends on the code of the sweep too: another sweep may find more."""
    digest = hashlib.sha256(f"{engine} tokenizers {tokenizers}\n".encode())
    digest.update(Path(sweep.__file__).read_bytes() + swept)
    return cache_folder("guards") / f"{digest.hexdigest()}.txt"


def _cached(path: Path) -> Guard | None:
    """The cached guard; None if there is none that can be read."""
    try:
        text, end = path.read_text().split("\n")
        return Guard.from_text(text) if end == "" else None
    except (OSError, ValueError):
        return None
