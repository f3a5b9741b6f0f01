"""`verify --rebuild`: build again from build.yaml in a temporary folder, and compare the data.

Found is what `verify` cannot see: an output that is sound, but not what its sources make.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

from ..config.checks import FUNCTION
from ..config.options import BuildConfig
from ..config.yaml_file import from_yaml
from ..run.build import build, pack
from ..schemas.manifest import Output, packs
from ..schemas.validate import Finding
from ..support.errors import ConfigError, brief
from ..support.progress import Progress
from ..tokens.store import is_store

_OF_THE_RUN = ("seconds", "tokens_per_second", "peak_memory_bytes")
_COMPARED_APART = ("inputs", "identity", "files", "plan")


def rebuild(output: Output, progress: Progress, **changed: Any) -> list[Finding]:
    """All that differs between an output and what its build.yaml makes; see `recorded_config`.

    Sources are opened where the build read them, relative paths from the working directory.
    """
    config = recorded_config(output, **changed)
    with TemporaryDirectory(prefix="packprep-", ignore_cleanup_errors=True) as folder:
        store = f"{folder}/tokens" if config.store else None
        again = replace(config, output=f"{folder}/out", store=store)
        made = (pack if any(map(is_store, config.sources)) else build)(again, progress=progress)
        return list(_differences(output, made))


def recorded_config(output: Output, **changed: Any) -> BuildConfig:
    """The options of the build of an output that `verify` finds sound.

    changed: a tokenizer that has moved, or is an object; and chat_template, which only the user may
    name if it is code. Raises ConfigError for what no file can say.
    """
    data, where = output.manifest.data, str(output.files)
    if planner := data["inputs"].get("planner"):
        raise ConfigError(f"{where} was built with a planner of its own, {planner}, which is code")
    options = from_yaml(output.files.local("build.yaml"))
    options |= {name: value for name, value in changed.items() if value is not None}
    if "-" in options["sources"]:
        raise ConfigError(f"{where} was built from standard input, which cannot be read again")
    template = options.get("chat_template")
    if template and FUNCTION.search(template) and changed.get("chat_template") is None:
        raise ConfigError(
            f"{where} was built with the code {template}; read it, and name it with --chat-template"
        )
    return BuildConfig(**options)


def _differences(before: Output, after: Output) -> Iterator[Finding]:
    """What differs; if the inputs do, nothing else is compared."""
    old, new = before.manifest, after.manifest
    if old.identity != new.identity:
        names = ", ".join(_changed(old.data, new.data))
        yield Finding(kind="inputs", what=f"the build had other inputs than there are now: {names}")
        return
    pairs = itertools.zip_longest(old.data["files"], new.data["files"])
    if differing := [found or expected for found, expected in pairs if found != expected]:
        file, what = differing[0], "is not what the sources make"
        if split := file.get("split"):
            what = f"of {split} {what}: {_first(before, after, split)}"
        yield Finding(kind="rebuild", what=f"{file['path']} {what}", count=len(differing))
    for name, value in old.data.items():
        if name not in _COMPARED_APART and value != new.data.get(name):
            yield _other(f"the {name} of manifest.json", value, new.data.get(name))
    reports = [json.loads(each.files.read("report.json")) for each in (before, after)]
    for name in sorted({*reports[0], *reports[1]} - {*_OF_THE_RUN}):
        found, expected = (report.get(name) for report in reports)
        if found != expected:
            yield _other(f"{name} of report.json", found, expected)


def _other(name: str, found: Any, expected: Any) -> Finding:
    return Finding(kind="rebuild", what=f"{name} is {brief(found)}; rebuilt: {brief(expected)}")


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Names of the sources and of the other inputs that differ."""
    sources = {each["name"]: each["digest"] for each in new["sources"]}
    yield from (s["name"] for s in old["sources"] if sources.get(s["name"]) != s["digest"])
    before, after = ({**of["inputs"], **of["inputs"]["tokens"]} for of in (old, new))
    names = {*before, *after} - {"tokens", "sources"}
    yield from (name for name in sorted(names) if before.get(name) != after.get(name))


def _first(before: Output, after: Output, split: str) -> str:
    """The first pack that differs, in words."""
    for old, new in zip(*(packs(o, split, check=False) for o in (before, after)), strict=False):
        for row in range(min(len(old.batch), len(new.batch))):
            a, b = old.batch.slice(row, 1), new.batch.slice(row, 1)
            if names := [n for n in a.schema.names if n not in b.schema.names or a[n] != b[n]]:
                return f"{old.shard.path} pack {old.first + row} has other {', '.join(names)}"
    counts = (each.manifest.splits.get(split, {}).get("packs", 0) for each in (before, after))
    return "it has {:,} packs; rebuilt: {:,}, equal as far as both go".format(*counts)
