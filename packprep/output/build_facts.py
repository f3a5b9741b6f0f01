"""Content of build.json: everything that decides the bytes of a build, and the words for a change.

A build resumes only what a build of equal inputs has left, written by a packprep that draws the
same random bits; else one output would mix two holdouts or two orders.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import NotRequired, Required, TypedDict

from packprep.config.build_config import BuildConfig
from packprep.config.spellings import RENAMED
from packprep.schemas.manifest import FORMAT_VERSION, NEWEST_VERSION
from packprep.sources.source import SourceFacts
from packprep.support.hashing import stream_samples

# Raised when work that an older packprep left cannot be resumed, as with STORE_VERSION.
STAGING_VERSION = 4
# Values of options that a build does not record.
_ADDED = {
    spec.name: added
    for spec in fields(BuildConfig)
    if (added := spec.metadata["added"]) is not None
}


class BuildInputs(TypedDict):
    """Inputs that decide the bytes of an output. generations: the outputs that it was merged of."""

    options: dict[str, object]
    sources: list[SourceFacts]
    tokenizer: dict[str, object]
    mix: NotRequired[list[dict[str, float]]]
    phases: NotRequired[list[dict[str, object]]]
    generations: NotRequired[list[dict[str, object]]]


class BuildFacts(TypedDict, total=False):
    """Content of build.json. names: of the sources. tokens: folder of the token files."""

    inputs: Required[BuildInputs]
    staging_version: int
    format_version: int
    random_streams: dict[str, str]
    names: Sequence[str]
    tokens: str
    source_bytes: int


def build_facts(
    inputs: BuildInputs, names: Sequence[str] = (), tokens: str = "", source_bytes: int = 0
) -> BuildFacts:
    """Content of build.json: versions, random streams, the inputs, facts for `packprep stats`."""
    options = inputs["options"]
    is_newer = options.get("materialize") == "index" or options.get("share_prefixes", False)
    return {
        "staging_version": STAGING_VERSION,
        "format_version": NEWEST_VERSION if is_newer else FORMAT_VERSION,
        "random_streams": stream_samples(),
        "inputs": inputs,
        "names": names,
        "tokens": tokens,
        "source_bytes": source_bytes,
    }


def resume_obstacle(old: BuildFacts, new: BuildFacts) -> str:
    """Reason why a build cannot resume what another one left, in words; "" if it can.

    old, new: content of build.json. The option on_error may differ: it decides whether a build ends
    at a bad row, and nothing about the rows before.
    """
    return difference(_without_on_error(old), _without_on_error(new))


def _without_on_error(build: BuildFacts) -> BuildFacts:
    inputs = build["inputs"]
    options = {key: value for key, value in inputs["options"].items() if key != "on_error"}
    return {**build, "inputs": {**inputs, "options": options}}


def difference(old: BuildFacts, new: BuildFacts) -> str:
    """Differences between two builds, in words; "" if there is none.

    Versions and random streams are compared if both builds name them: a manifest names none.
    """
    changed = [
        f"{key.replace('_', ' ')} was {old.get(key)}, now {new.get(key)}"
        for key in ("staging_version", "format_version")
        if key in old and key in new and old.get(key) != new.get(key)
    ]
    streams, now_streams = old.get("random_streams", {}), new.get("random_streams", {})
    if redefined := sorted(
        name for name in streams if name in now_streams and streams[name] != now_streams[name]
    ):
        changed.append(f"packprep draws other random bits now: {', '.join(redefined)}")
    was, now = old["inputs"], new["inputs"]
    changed += [
        f"{RENAMED.get(key, key)} was {before!r}, now {after!r}"
        for key in sorted({*was["options"], *now["options"]})
        if (before := was["options"].get(key, _ADDED.get(key)))
        != (after := now["options"].get(key, _ADDED.get(key)))
    ]
    changed += [_changed_sources(old, new)] if was["sources"] != now["sources"] else []
    changed += ["another tokenizer"] if was["tokenizer"] != now["tokenizer"] else []
    if not changed and was != now:
        changed = [f"other {key}" for key in sorted({*was, *now}) if was.get(key) != now.get(key)]
    return "; ".join(changed)


def _changed_sources(old: BuildFacts, new: BuildFacts) -> str:
    """Sources that changed, by name if the names are known."""
    before, after = old["inputs"]["sources"], new["inputs"]["sources"]
    if len(before) != len(after):
        return f"{_files(len(before))} before, {len(after)} now"
    names = new.get("names", [])
    if len(names) != len(after):
        return "other sources"
    return ", ".join(
        f"{name} changed" for name, was, now in zip(names, before, after, strict=True) if was != now
    )


def _files(number: int) -> str:
    return "1 source file" if number == 1 else f"{number} source files"
