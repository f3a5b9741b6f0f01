"""Content of build.json: everything that decides the bytes of a build, and the words for a change.

A build resumes only what a build of equal inputs has left, written by a packprep that draws the
same random bits; else one output would mix two holdouts or two orders.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from packprep.config.build_config import BuildConfig
from packprep.config.spellings import RENAMED
from packprep.schemas.manifest import FORMAT_VERSION, NEWEST_VERSION
from packprep.support.hashing import stream_samples

# Raised when work that an older packprep left cannot be resumed, as with STORE_VERSION.
STAGING_VERSION = 4
# Values of options that a build does not record.
_ADDED = {
    spec.name: added
    for spec in fields(BuildConfig)
    if (added := spec.metadata["added"]) is not None
}


def build_facts(inputs: Mapping[str, Any], **rest: Any) -> dict[str, Any]:
    """Content of build.json: versions, random streams, the inputs, and facts for `packprep stats`.

    rest: those facts, such as the names of the sources.
    """
    options = inputs["options"]
    is_newer = options.get("materialize") == "index" or options.get("share_prefixes", False)
    return {
        "staging_version": STAGING_VERSION,
        "format_version": NEWEST_VERSION if is_newer else FORMAT_VERSION,
        "random_streams": stream_samples(),
        "inputs": dict(inputs),
        **rest,
    }


def resume_obstacle(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Reason why a build cannot resume what another one left, in words; "" if it can.

    old, new: content of build.json. The option on_error may differ: it decides whether a build ends
    at a bad row, and nothing about the rows before.
    """
    return difference(_without_on_error(old), _without_on_error(new))


def _without_on_error(build: Mapping[str, Any]) -> dict[str, Any]:
    inputs = build["inputs"]
    options = {key: value for key, value in inputs["options"].items() if key != "on_error"}
    return {**build, "inputs": {**inputs, "options": options}}


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Differences between two builds, in words; "" if there is none.

    Versions and random streams are compared if both builds name them: a manifest names none.
    """
    changed = [
        f"{key.replace('_', ' ')} was {old[key]}, now {new[key]}"
        for key in ("staging_version", "format_version")
        if key in old and key in new and old[key] != new[key]
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


def _changed_sources(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
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
