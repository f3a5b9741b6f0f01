"""The entries of `sources`: paths, how to read the rows, and how many tokens to take.

    sources:
      - {path: web/*.jsonl.gz, weight: 50}
      - {path: [a.parquet, b.parquet], label: code, text_column: content, weight: 30, max_epochs: 4}
      - {path: math.jsonl, text_template: "{question}
{answer}", weight: 20}

An amount is `weight` (share of the tokens), `epochs` (times its tokens) or `max_tokens`. Sources
with an amount are a mix. Shares are of tokens in packs, after filters and truncation.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from packprep.config.amounts import counted, without_percent
from packprep.config.spellings import option_here
from packprep.support.errors import ConfigError, InputError, brief, nearest
from packprep.support.redact import redacted

AMOUNTS = ("weight", "epochs", "max_tokens")
NUMBERS = (
    "input_ids_column",
    "labels_column",
    "loss_mask_column",
)  # set for all sources or for none
_MAX_COPIES = 100_000  # each copy is in a separate window
_KEYS = (
    "path",
    "label",
    *AMOUNTS,
    "max_epochs",
)  # in addition to the options that a source may set


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of `sources`.

    label: its name in reports.
    reading: options that differ from those of the build.

    At most one of weight, epochs and max_tokens is not None.
    max_epochs: how many times a source with a weight may be used.
    """

    label: str
    paths: tuple[str, ...]
    reading: dict[str, Any]
    weight: Fraction | None = None
    epochs: Fraction | None = None
    max_tokens: int | None = None
    max_epochs: Fraction = Fraction(1)

    @property
    def asked(self) -> dict[str, float]:
        """The amount as the user wrote it; empty for all tokens once."""
        amounts = {key: getattr(self, key) for key in AMOUNTS}
        return {key: _plain(amount) for key, amount in amounts.items() if amount is not None}


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
            f"weights has {len(weights)} numbers for {len(sources)} sources; give one for each "
            "source"
        )
    tables: list[dict[str, Any]] = [
        {"path": source} if isinstance(source, str) else dict(source) for source in sources
    ]
    checked = []
    for number, source in enumerate(tables):
        label = _label(source)
        if weights:
            _refuse(
                label, "an amount in addition to weights", any(key in source for key in AMOUNTS)
            )
            source["weight"] = weights[number]
        checked.append(_entry(label, source, max_epochs, options, phased))
    _check_together(checked, phased)
    if max_epochs != 1 and not phased and not any(entry.weight for entry in checked):
        raise ConfigError(
            "max_epochs is for sources with a weight, and no source has a weight; leave it out"
        )
    return tuple(checked)


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


def _label(source: Mapping[str, Any]) -> str:
    paths = source.get("path")
    if isinstance(paths, str):
        paths = [paths]
    if (
        not isinstance(paths, (list, tuple))
        or not paths
        or not all(isinstance(path, str) and path for path in paths)
    ):
        raise ConfigError(
            f"a source is {brief(dict(source))}, expected a table with path: FILE or path: [FILE, "
            "...]"
        )
    if "label" not in source:
        return redacted(", ".join(paths))
    label = source["label"]
    if not isinstance(label, str) or not label.strip():
        raise ConfigError(f"source {', '.join(paths)} has label {brief(label)}, expected text")
    return redacted(label)


def _entry(
    label: str, source: Mapping[str, Any], max_epochs: float, options: Sequence[str], phased: bool
) -> Entry:
    for key in source:
        if key not in _KEYS and key not in options:
            if isinstance(key, str) and (option := option_here(key)) in options:
                raise ConfigError(f"source {label}: {key} is called {option} here")
            raise ConfigError(
                f"source {label} has an unknown key "
                f"{brief(key)}{nearest(key[:100], (*_KEYS, *options))}"
            )
    amounts = [key for key in AMOUNTS if key in source]
    if len(amounts) > 1:
        both = " and ".join(amounts)
        more = (
            "; max_epochs is how many times a source with a weight may be used"
            if "weight" in amounts
            else ""
        )
        raise ConfigError(
            f"source {label} has {both}, which both set how much to take; give one of them{more}"
        )
    lonely = "max_epochs" in source and "weight" not in source and not phased
    _refuse(label, "max_epochs without a weight", lonely)
    for key in ("epochs", "max_tokens"):
        _refuse(label, f"{key}, and phases say how much to take", phased and key in source)
    for pair in ("text_column", "text_template"):
        _refuse(label, f"{pair} null", pair in source and source[pair] is None)
    numbers = {
        key: _number(label, key, counted(source[key]) if key == "max_tokens" else source[key])
        for key in (*amounts, "max_epochs")
        if key in source
    }
    numbers.setdefault("max_epochs", _number(label, "max_epochs", max_epochs))
    if (tokens := numbers.get("max_tokens")) is not None and tokens.denominator != 1:
        raise ConfigError(
            f"source {label} has max_tokens {brief(source['max_tokens'])}, expected a whole number"
        )
    paths = source["path"]
    return Entry(
        label=label,
        paths=(paths,) if isinstance(paths, str) else tuple(paths),
        reading={
            key: counted(source[key]) if key == "limit" else source[key]
            for key in options
            if key in source
        },
        weight=numbers.get("weight"),
        epochs=numbers.get("epochs"),
        max_tokens=None if tokens is None else int(tokens),
        max_epochs=numbers["max_epochs"],
    )


def _check_together(sources: Sequence[Entry], phased: bool) -> None:
    weighted = [entry for entry in sources if entry.weight is not None]
    others = [entry for entry in sources if entry.weight is None]
    if weighted and others:
        raise ConfigError(
            f"source {others[0].label} has no weight and {weighted[0].label} has one; give every "
            "source a weight, or use epochs and max_tokens for all"
        )
    labels = [entry.label for entry in sources]
    for label in labels:
        if (phased or is_mix(sources)) and labels.count(label) > 1:
            raise ConfigError(
                f"two sources of the mix have the label {label}; give each a different label"
            )


def _number(label: str, key: str, value: Any) -> Fraction:
    """Convert a number above 0 exactly: 0.1 is one tenth, so rounding decides nothing."""
    try:
        value = without_percent(value) if key == "weight" else value
        if isinstance(value, bool) or not math.isfinite(size := float(value)):
            raise ValueError
        number = Fraction(str(value)) if size else Fraction(0)  # 1e-999999999 would take gigabytes
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"source {label} has {key} {brief(value)}, expected a number above 0"
        ) from None
    if number <= 0:
        hint = "; to use nothing of a source, leave it out" if number == 0 else ""
        raise ConfigError(
            f"source {label} has {key} {brief(value)}, expected a number above 0{hint}"
        )
    return number


def _refuse(label: str, description: str, wrong: bool) -> None:
    if wrong:
        raise ConfigError(f"source {label} has {description}; leave it out")


def _plain(number: Fraction | int) -> float:
    """Number for JSON: whole numbers without a decimal point."""
    return int(number) if number == int(number) else float(number)
