"""Content of build.json: everything that decides the bytes of a build, and the words for a change.

A build resumes only what a build of equal inputs has left, written by a packprep that draws the
same random bits; else one output would mix two holdouts or two orders.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NotRequired, Required, TypedDict

from packprep.config.recorded import as_typed, earlier_defaults, named_now, value_before
from packprep.schemas.columns import UINT16_LIMIT
from packprep.schemas.manifest import FORMAT_VERSION, NEWEST_VERSION
from packprep.sources.source import SourceFacts
from packprep.support.hashing import stream_samples

# Raised when work that an older packprep left cannot be resumed, as with STORE_VERSION.
STAGING_VERSION = 5
# Facts of the tokenizer that follow from options.
_FACTS = {
    "bos": ("bos", "pad_id"),
    "boundaries": ("boundary",),
    "eos": ("eos", "pad_id"),
    "vocab_size": ("vocab_size",),
}
_RENDERING = {"chat_template": "chat template", "renderer": "renderer"}
"""Facts of the tokenizer that are of what renders conversations, in words."""


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

    old, new: content of build.json, or the inputs alone, which a manifest has. The option on_error
    may differ: it decides whether a build ends at a bad row, and nothing about the rows before.
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
    change = Change(old["inputs"], new["inputs"], new.get("names", ()))
    return "; ".join(filter(None, [*changed, change.words(["on_error"])]))


@dataclass(frozen=True)
class Change:
    """Inputs of an earlier build and of a later one, compared by what they mean.

    A missing option has the value of builds before it. names: of the sources of the later one, if
    they are known.
    """

    old: BuildInputs
    new: BuildInputs
    names: Sequence[str] = ()

    @property
    def options(self) -> dict[str, tuple[object, object]]:
        """Options that decide other bytes, with both values."""
        old, new = _options(self.old), _options(self.new)
        pairs = {
            name: (old.get(name, value_before(name)), new.get(name, value_before(name)))
            for name in sorted({*old, *new})
        }
        return {name: (was, now) for name, (was, now) in pairs.items() if was != now}

    def earlier_defaults(self, given: Collection[str]) -> dict[str, object]:
        """Values that were a default of options with another default now.

        given: options that the later build does not leave to their default.
        """
        return {
            name: was
            for name, (was, _) in self.options.items()
            if name not in given and was in earlier_defaults(name)
        }

    @property
    def advice(self) -> str:
        """Advice to make the later build like the earlier one."""
        settings = as_typed({name: was for name, (was, _) in self.options.items()})
        return f"give {settings}" if settings else "repeat its settings"

    def words(self, ignored: Collection[str] = ()) -> str:
        """Differences in words; "" if there is none. ignored: options that may differ."""
        was, now = self.old["tokenizer"], self.new["tokenizer"]
        facts = {*was, *now}.difference(*(_FACTS.get(name, ()) for name in ignored))
        others = {_RENDERING.get(key, "tokenizer") for key in facts if was.get(key) != now.get(key)}
        changed = [
            *(
                f"{name} was {before!r}, now {after!r}"
                for name, (before, after) in self.options.items()
                if name not in ignored
            ),
            self._changed_sources(),
            *(f"another {name}" for name in sorted(others)),
        ]
        parts = sorted({*self.old, *self.new} - {"options", "sources", "tokenizer"})
        if not any(changed):
            changed = [f"other {key}" for key in parts if self.old.get(key) != self.new.get(key)]
        return "; ".join(filter(None, changed))

    def _changed_sources(self) -> str:
        """Sources that changed, by name if the names are known; "" if none has."""
        before, after = self.old["sources"], self.new["sources"]
        if before == after:
            return ""
        if _without_skip_rows(before) == _without_skip_rows(after):
            was, now = (
                sum(len(source.get("skip_rows", ())) for source in sources)
                for sources in (before, after)
            )
            return f"skip_rows was {was:,} rows, now {now:,}{' others' * (was == now)}"
        if len(before) != len(after):
            return f"{_files(len(before))} before, {len(after)} now"
        if len(self.names) != len(after):
            return "other sources"
        named = zip(self.names, before, after, strict=True)
        return ", ".join(f"{name} changed" for name, was, now in named if was != now)


def _without_skip_rows(sources: Sequence[SourceFacts]) -> list[dict[str, object]]:
    return [
        {name: fact for name, fact in source.items() if name != "skip_rows"} for source in sources
    ]


def _options(inputs: BuildInputs) -> dict[str, object]:
    """Options by their names now; token_type is resolved, which builds did not record before."""
    options = named_now(inputs["options"])
    if options.get("token_type") == "auto":
        size = inputs["tokenizer"]["vocab_size"]
        fits = isinstance(size, int) and size <= UINT16_LIMIT
        options["token_type"] = "uint16" if fits else "int32"
    return options


def _files(number: int) -> str:
    return "1 source file" if number == 1 else f"{number} source files"
