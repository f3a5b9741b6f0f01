"""The entries of `sources:`.

Where each source is, how its rows are read, and how many of its tokens are wanted.

    sources:
      - {path: web/*.jsonl.gz, weight: 50}
      - {path: [a.parquet, b.parquet], label: code, text_column: content, weight: 30, max_epochs: 4}
      - {path: math.jsonl, text_template: "{question}
{answer}", weight: 20}

An amount is `weight` (share of tokens), `epochs` (times its tokens) or `max_tokens`; sources with
any are a mix. Shares are of tokens in packs, what filters and truncation take away not counted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from packprep.support.errors import ConfigError, InputError, brief, nearest
from packprep.support.redact import redacted

AMOUNTS = ("weight", "epochs", "max_tokens")
NUMBERS = (
    "input_ids_column",
    "labels_column",
    "loss_mask_column",
)  # given for all sources or for none
_MOST_TIMES = 100_000  # each copy is in a window of its own
_KEYS = (
    "path",
    "label",
    *AMOUNTS,
    "max_epochs",
)  # beside the options that a source may have for itself


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of `sources`.

    label: what reports call it. reading: options that differ from those of the build.

    At most one of weight, epochs and max_tokens is not None. max_epochs: how often a weight may
    repeat it.
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
        """The amount as it was asked for; empty for all tokens once."""
        amounts = {key: getattr(self, key) for key in AMOUNTS}
        return {key: _plain(amount) for key, amount in amounts.items() if amount is not None}


def entries(
    sources: Sequence[str | Mapping[str, Any]],
    weights: Sequence[str],
    max_epochs: float,
    options: Sequence[str] = (),
) -> tuple[Entry, ...]:
    """The entries of `sources`, checked. ConfigError names the source.

    weights: one for each source, or none. options: names of those that a source may have for
    itself.
    """
    if weights and len(weights) != len(sources):
        raise ConfigError(
            f"weights has {len(weights)} numbers for {len(sources)} sources; give one for each "
            "source"
        )
    given: list[dict[str, Any]] = [
        {"path": source} if isinstance(source, str) else dict(source) for source in sources
    ]
    found = []
    for number, source in enumerate(given):
        label = _label(source)
        if weights:
            _refuse(
                label, "an amount of its own beside weights", any(key in source for key in AMOUNTS)
            )
            source["weight"] = weights[number]
        found.append(_entry(label, source, max_epochs, options))
    _check_together(found)
    if max_epochs != 1 and not any(entry.weight for entry in found):
        raise ConfigError(
            "max_epochs says how often sources with a weight may be repeated, and none has a weight"
        )
    return tuple(found)


def is_mix(found: Sequence[Entry]) -> bool:
    """True if documents are drawn, rather than all of them taken once."""
    return any(entry.asked for entry in found)


def as_dicts(found: Sequence[Entry]) -> list[dict[str, float]]:
    """Facts of each source that decide the bytes of a mix.

    Weights 50 and 50 are the same as 1 and 1.
    """
    of_weights = shares(found)
    return [
        {"share": float(share), "max_epochs": float(entry.max_epochs)}
        if entry.weight is not None
        else entry.asked
        for entry, share in zip(found, of_weights, strict=True)
    ]


def shares(found: Sequence[Entry]) -> list[Fraction]:
    """Shares of weights, which add up to 1. Example: weights 50, 30, 20 -> 1/2, 3/10, 1/5."""
    weights = [entry.weight or Fraction(0) for entry in found]
    return [weight / (sum(weights) or 1) for weight in weights]


def targets(
    found: Sequence[Entry], available: Sequence[int], limit: int | None = None
) -> tuple[list[int], Entry | None]:
    """Tokens to draw from each source, and the source that limits a mix of weights, if one does.

    available: tokens there are of each. limit: tokens of the whole mix at most. Weights make the
    largest mix that has exactly their shares and repeats no source beyond its max_epochs. Example:
    weights 50, 30, 20 of 900, 300, 900 tokens -> 500, 300, 200; the second source is the scarce
    one.
    """
    scarce = None
    if found[0].weight is not None:
        for entry, tokens in zip(found, available, strict=True):
            if not tokens:
                raise InputError(
                    f"the source {entry.label} has no tokens to mix; mend or leave it out"
                )
        parts = shares(found)
        room = [
            tokens * entry.max_epochs / part
            for entry, tokens, part in zip(found, available, parts, strict=True)
        ]
        whole = min(room)
        scarce = found[room.index(whole)] if limit is None or whole < limit else None
        wanted = [part * whole for part in parts]
    else:
        wanted = [
            tokens * (entry.epochs or Fraction(1))
            if entry.max_tokens is None
            else Fraction(min(entry.max_tokens, tokens))
            for entry, tokens in zip(found, available, strict=True)
        ]
    if limit is not None and (total := sum(wanted)) > limit:
        wanted = [amount * limit / total for amount in wanted]
    for entry, amount, tokens in zip(found, wanted, available, strict=True):
        if amount > _MOST_TIMES * tokens:
            raise InputError(
                f"the mix would repeat the source {entry.label} more than {_MOST_TIMES:,} times; "
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
            f"a source is {brief(dict(source))}, expected path: FILE or path: [FILE, ...] in it"
        )
    if "label" not in source:
        return redacted(", ".join(paths))
    label = source["label"]
    if not isinstance(label, str) or not label.strip():
        raise ConfigError(f"source {', '.join(paths)} has label {brief(label)}, expected text")
    return redacted(label)


def _entry(
    label: str, source: Mapping[str, Any], max_epochs: float, options: Sequence[str]
) -> Entry:
    for key in source:
        if key not in _KEYS and key not in options:
            raise ConfigError(
                f"source {label} has an unknown key "
                f"{brief(key)}{nearest(key[:100], (*_KEYS, *options))}"
            )
    amounts = [key for key in AMOUNTS if key in source]
    if len(amounts) > 1:
        both = " and ".join(amounts)
        more = (
            "; max_epochs is how often a source with a weight may be repeated"
            if "weight" in amounts
            else ""
        )
        raise ConfigError(
            f"source {label} has {both}, which both say how much of it is wanted; give one{more}"
        )
    _refuse(label, "max_epochs without a weight", "max_epochs" in source and "weight" not in source)
    for pair in ("text_column", "text_template"):
        _refuse(label, f"{pair} null", pair in source and source[pair] is None)
    numbers = {
        key: _number(label, key, source[key]) for key in (*amounts, "max_epochs") if key in source
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
        reading={key: source[key] for key in options if key in source},
        weight=numbers.get("weight"),
        epochs=numbers.get("epochs"),
        max_tokens=None if tokens is None else int(tokens),
        max_epochs=numbers["max_epochs"],
    )


def _check_together(found: Sequence[Entry]) -> None:
    weighted = [entry for entry in found if entry.weight is not None]
    others = [entry for entry in found if entry.weight is None]
    if weighted and others:
        raise ConfigError(
            f"source {others[0].label} has no weight and {weighted[0].label} has one; give every "
            "source a weight, or "
            "none and say epochs or max_tokens"
        )
    labels = [entry.label for entry in found]
    for label in labels:
        if is_mix(found) and labels.count(label) > 1:
            raise ConfigError(
                f"two sources of the mix are called {label}; give each a label of its own"
            )


def _number(label: str, key: str, value: Any) -> Fraction:
    """A number above 0, as it was written.

    0.1 is one tenth, so that no rounding decides which documents are drawn.
    """
    try:
        if isinstance(value, bool) or not math.isfinite(size := float(value)):
            raise ValueError
        number = Fraction(str(value)) if size else Fraction(0)  # 1e-999999999 would take gigabytes
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"source {label} has {key} {brief(value)}, expected a number above 0"
        ) from None
    if number <= 0:
        hint = "; to take nothing of a source leave it out" if number == 0 else ""
        raise ConfigError(
            f"source {label} has {key} {brief(value)}, expected a number above 0{hint}"
        )
    return number


def _refuse(label: str, what: str, wrong: bool) -> None:
    if wrong:
        raise ConfigError(f"source {label} has {what}; leave that out")


def _plain(number: Fraction | int) -> float:
    """As JSON writes it: whole numbers without a point."""
    return int(number) if number == int(number) else float(number)
