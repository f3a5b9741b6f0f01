"""The entries of `sources`: paths, how to read the rows, and how many tokens to take.

    sources:
      - {path: web/*.jsonl.gz, weight: 50}
      - {path: [a.parquet, b.parquet], label: code, text_column: content, weight: 30, max_epochs: 4}
      - {path: math.jsonl, text_template: "{question}
{answer}", weight: 20}

An amount is `weight` (share of the tokens), `epochs` (times its tokens) or `max_tokens`. Sources
with an amount are a mix. Shares are of tokens in packs, after filters and truncation.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from typing import Any

from packprep.config.grammar.amounts import counted, exact, without_percent
from packprep.config.grammar.rules import Rule, enforce, unknown
from packprep.config.grammar.source_names import HubPart, hub_name
from packprep.config.grammar.spellings import option_here
from packprep.support.errors import ConfigError, InputError
from packprep.support.redact import redacted

AMOUNTS = ("weight", "epochs", "max_tokens")
NUMBERS = (
    "input_ids_column",
    "labels_column",
)  # set for all sources or for none
_MAX_COPIES = 100_000  # each copy is in a separate window
_KEYS = (
    "path",
    "label",
    *AMOUNTS,
    "max_epochs",
    "given",
)  # in addition to the options that a source may set


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of `sources`.

    label: its name in reports.
    reading: options that differ from those of the build.
    given: the part of a dataset that options of earlier versions ask of all sources.

    At most one of weight, epochs and max_tokens is not None.
    max_epochs: how many times a source with a weight may be used.
    """

    label: str
    paths: tuple[str, ...]
    reading: dict[str, Any]
    given: HubPart = HubPart()
    weight: Fraction | None = None
    epochs: Fraction | None = None
    max_tokens: int | None = None
    max_epochs: Fraction = Fraction(1)

    @property
    def asked(self) -> dict[str, float]:
        """The amount as the user wrote it; empty for all tokens once."""
        amounts = {key: getattr(self, key) for key in AMOUNTS}
        return {key: _plain(amount) for key, amount in amounts.items() if amount is not None}


@dataclass(frozen=True)
class _Written:
    """A table of `sources`, and what the build says about all of them.

    weight: of `weights`, None without. max_epochs: of the build. options: names of the options that
    a source may set. phased: true if phases say how much to take.
    """

    table: Mapping[str, Any]
    weight: str | None
    max_epochs: float
    options: Sequence[str]
    phased: bool

    @property
    def paths(self) -> tuple[Any, ...]:
        """The paths; empty for a wrong value."""
        paths = self.table.get("path")
        return (paths,) if isinstance(paths, str) else tuple(paths or ())

    @property
    def label(self) -> str:
        """The name of the source in reports."""
        return redacted(self.table.get("label", ", ".join(self.paths)))

    @property
    def given(self) -> Mapping[str, Any]:
        """The part of a dataset that is asked of all sources."""
        given = self.table.get("given", {})
        return given if isinstance(given, Mapping) else {str(given): None}

    @property
    def amounts(self) -> list[str]:
        """Those of `AMOUNTS` that the table has."""
        return [key for key in AMOUNTS if key in self.table]

    @property
    def written(self) -> Mapping[str, Any]:
        """The amount and max_epochs, of the table or else of the build."""
        weight = {} if self.weight is None else {"weight": self.weight}
        own = {key: self.table[key] for key in (*self.amounts, "max_epochs") if key in self.table}
        return {"max_epochs": self.max_epochs} | weight | own

    def number(self, key: str) -> Fraction | None:
        """A number of `written` exactly: 0.1 is one tenth, so rounding decides nothing."""
        convert = {"weight": without_percent, "max_tokens": counted}.get(key)
        value = self.written.get(key)
        return exact(convert(value) if convert else value)


SOURCE_RULES: tuple[Rule[_Written], ...] = (
    Rule(
        "a source is {table!r}, expected a table with path: FILE or path: [FILE, ...]",
        lambda source: (
            not isinstance(source.table.get("path"), (str, list, tuple))
            or not source.paths
            or not all(isinstance(path, str) and path for path in source.paths)
        ),
    ),
    Rule(
        "source {name!r} is no dataset on the hub, expected hub:ORG/SET[:NAME][@REVISION][#SPLIT]; "
        "a part with one of these signs in it is a key of the source, in YAML",
        lambda source: ({"name": path} for path in source.paths if hub_name(path) is None),
    ),
    Rule(
        "source {name} has its {key} in its name and as a key; leave one of them out",
        lambda source: (
            {"name": path, "key": key}
            for path in source.paths
            for key, value in zip(HubPart._fields, (hub_name(path) or ("", ()))[1], strict=False)
            if value is not None and key in source.table
        ),
    ),
    Rule(
        "source {path} has label {label!r}, expected text",
        lambda source: (
            not (isinstance(label := source.table.get("label", "-"), str) and label.strip())
            and {"path": ", ".join(source.paths), "label": label}
        ),
    ),
    Rule(
        "source {label}: {key} is {value!r}, expected text",
        lambda source: (
            {"key": key, "value": value}
            for key, value in (*source.table.items(), *source.given.items())
            if key in HubPart._fields and not isinstance(value, str | None)
        ),
    ),
    Rule(
        "source {label} has an unknown key {name!r} in given{near}",
        lambda source: unknown(source.given, HubPart._fields),
    ),
    Rule(
        "source {label} has an amount in addition to --weights; leave it out",
        lambda source: source.amounts and source.weight is not None,
    ),
    Rule(
        "source {label}: {key} is called {option} here",
        lambda source: (
            {"key": key, "option": option}
            for key in source.table
            if (option := option_here(key)) in source.options and key not in source.options
        ),
    ),
    Rule(
        "source {label} has an unknown key {name!r}{near}",
        lambda source: unknown(source.table, (*_KEYS, *source.options)),
    ),
    Rule(
        "source {label} has {both}, which both set how much to take; give one of them (max_epochs "
        "is how many times a source with a weight may be used)",
        lambda source: len(source.amounts) > 1 and {"both": " and ".join(source.amounts)},
    ),
    Rule(
        "source {label} has max_epochs without a weight; leave it out",
        lambda source: (
            "max_epochs" in source.table and "weight" not in source.written and not source.phased
        ),
    ),
    Rule(
        "source {label} has {key}, and --phases say how much to take; leave it out",
        lambda source: (
            {"key": key}
            for key in source.amounts
            if source.phased and key in ("epochs", "max_tokens")
        ),
    ),
    Rule(
        "source {label} has {key} null; leave it out",
        lambda source: (
            {"key": key}
            for key in ("text_column", "text_template")
            if source.table.get(key, "") is None
        ),
    ),
    Rule(
        "source {label} has {key} {value!r}, expected a number above 0; to use nothing of a "
        "source, leave it out",
        lambda source: (
            {"key": key, "value": value}
            for key, value in source.written.items()
            if (number := source.number(key)) is None or number <= 0
        ),
    ),
    Rule(
        "source {label} has max_tokens {value!r}, expected a whole number",
        lambda source: (
            (tokens := source.number("max_tokens")) is not None
            and tokens.denominator != 1
            and {"value": source.table["max_tokens"]}
        ),
    ),
)


@dataclass(frozen=True)
class _Together:
    """All entries of `sources`, and those with a weight, see `_Written`."""

    entries: Sequence[Entry]
    weighted: Sequence[Entry]
    max_epochs: float
    phased: bool


MIX_RULES: tuple[Rule[_Together], ...] = (
    Rule(
        "source {without} has no weight and {with_one} has one; give every source a weight, or use "
        "epochs and max_tokens for all",
        lambda all_: (
            {"without": entry.label, "with_one": all_.weighted[0].label}
            for entry in all_.entries
            if entry.weight is None and all_.weighted
        ),
    ),
    Rule(
        "two sources of the mix have the label {label}; give each a different label",
        lambda all_: (
            {"label": label}
            for label, times in Counter(entry.label for entry in all_.entries).items()
            if times > 1 and (all_.phased or is_mix(all_.entries))
        ),
    ),
    Rule(
        "--max-epochs is for sources with a weight, and no source has a weight; leave it out",
        lambda all_: all_.max_epochs != 1 and not all_.phased and not all_.weighted,
    ),
)


def entries(
    sources: Sequence[str | Mapping[str, Any]],
    weights: Sequence[str],
    max_epochs: float,
    options: Sequence[str] = (),
    *,
    phased: bool = False,
) -> tuple[Entry, ...]:
    """Return the checked entries of `sources`. Raises ConfigError that names the source.

    weights: one for each source, or none. options: names of the options that a source may set.
    phased: True if phases say how much to take.
    """
    if weights and len(weights) != len(sources):
        raise ConfigError(
            f"--weights has {len(weights)} numbers for {len(sources)} sources; give one for each "
            "source"
        )
    checked = []
    for source, weight in zip_longest(sources, weights):
        table = {"path": source} if isinstance(source, str) else source
        written = _Written(table, weight, max_epochs, options, phased)
        enforce(SOURCE_RULES, written)
        checked.append(_entry(written))
    weighted = [entry for entry in checked if entry.weight is not None]
    enforce(MIX_RULES, _Together(checked, weighted, max_epochs, phased))
    return tuple(checked)


def _entry(source: _Written) -> Entry:
    tokens = source.number("max_tokens")
    return Entry(
        label=source.label,
        paths=source.paths,
        reading={
            key: counted(source.table[key]) if key == "limit" else source.table[key]
            for key in source.options
            if key in source.table
        },
        given=HubPart(**source.given),
        weight=source.number("weight"),
        epochs=source.number("epochs"),
        max_tokens=None if tokens is None else int(tokens),
        max_epochs=source.number("max_epochs") or Fraction(1),
    )


def is_mix(sources: Sequence[Entry]) -> bool:
    """True if documents are drawn, rather than all of them taken once."""
    return any(entry.asked for entry in sources)


def as_dicts(sources: Sequence[Entry]) -> list[dict[str, float]]:
    """The amount of each source as JSON values, for the identity of a mix.

    Weights 50 and 50 give the same as 1 and 1.
    """
    return [
        {"share": float(share), "max_epochs": float(entry.max_epochs)}
        if entry.weight is not None
        else entry.asked
        for entry, share in zip(sources, shares(sources), strict=True)
    ]


def shares(sources: Sequence[Entry]) -> list[Fraction]:
    """Shares of the weights; they add up to 1. Example: weights 50, 30, 20 -> 1/2, 3/10, 1/5."""
    weights = [entry.weight or Fraction(0) for entry in sources]
    return [weight / (sum(weights) or 1) for weight in weights]


def targets(
    sources: Sequence[Entry], available: Sequence[int], limit: int | None = None
) -> tuple[list[int], Entry | None]:
    """Tokens to draw from each source, and the source that limits a mix of weights, or None.

    available: tokens of each source. limit: maximum tokens of the mix. Weights make the largest mix
    that has exactly their shares and uses no source more than max_epochs times. Example: weights
    50, 30, 20 and 900, 300, 900 tokens -> 500, 300, 200; the second source is the scarce one.
    """
    scarce = None
    if sources[0].weight is not None:
        for entry, tokens in zip(sources, available, strict=True):
            if not tokens:
                raise InputError(
                    f"the source {entry.label} has no tokens to mix; fix it or leave it out"
                )
        parts = shares(sources)
        sizes = [  # of the largest mix that each source allows
            tokens * entry.max_epochs / part
            for entry, tokens, part in zip(sources, available, parts, strict=True)
        ]
        size = min(sizes)
        scarce = sources[sizes.index(size)] if limit is None or size < limit else None
        wanted = [part * size for part in parts]
    else:
        wanted = [
            tokens * (entry.epochs or Fraction(1))
            if entry.max_tokens is None
            else Fraction(min(entry.max_tokens, tokens))
            for entry, tokens in zip(sources, available, strict=True)
        ]
    if limit is not None and (total := sum(wanted)) > limit:
        wanted = [amount * limit / total for amount in wanted]
    for entry, amount, tokens in zip(sources, wanted, available, strict=True):
        if amount > _MAX_COPIES * tokens:
            raise InputError(
                f"the mix would repeat the source {entry.label} more than {_MAX_COPIES:,} times; "
                "give max_tokens, or "
                "smaller epochs or max_epochs"
            )
    return [int(amount) for amount in wanted], scarce


def _plain(number: Fraction | int) -> float:
    """Number for JSON: whole numbers without a decimal point."""
    return int(number) if number == int(number) else float(number)
