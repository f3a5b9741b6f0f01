"""The entries of `phases`: parts of one output, one after another, with a mix and a length of each.

    phases:
      - {tokens: 80%, weights: [70, 30], max_length: 4096}
      - {tokens: 15%, weights: {code: 1, prose: 1}}
      - {tokens: 5%, weights: [10, 90], max_length: 32768}

`tokens` is a share of max_tokens, or of the largest total that all phases can supply, or a number.
All but `tokens` may be left out: weights are those of the sources, and the rest is that of the
build. With min_document_tokens and max_document_tokens a phase takes documents of these lengths
only, and leaves the others for other phases. `{by_length: [512, 2048], mixed: 40%}` is short for a
phase for each class of lengths, in turn, and one of all lengths.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from packprep.config.amounts import counted, without_percent
from packprep.config.spellings import recorded_name, with_new_names
from packprep.support.errors import ConfigError, brief, nearest

_MOST = 32
LENGTHS = ("max_length", "min_document_tokens", "max_document_tokens")
_KEYS = ("tokens", "weights", *LENGTHS)
_PRESET = ("by_length", "mixed")
_EXAMPLE = "expected a list of tables such as {tokens: 80%, weights: [70, 30], max_length: 4096}"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One entry of `phases`.

    tokens: number of tokens; None if it is a share of a total that is not known yet.
    share: of that total.
    shares: of each source; they add up to 1. None: as much of each as it has.
    """

    tokens: int | None
    share: Fraction | None
    shares: tuple[Fraction, ...] | None
    max_length: int
    min_document_tokens: int
    max_document_tokens: int | None

    def as_dict(self) -> dict[str, Any]:
        """The phase as JSON values, for the identity of an output.

        Weights 50 and 50 give the same as 1 and 1, and 50% of 1,000 tokens the same as 500.
        """
        return {
            **({"share": float(self.share or 0)} if self.tokens is None else {}),
            **({} if self.tokens is None else {"tokens": self.tokens}),
            "shares": None if self.shares is None else [float(share) for share in self.shares],
            **self.lengths(),
        }

    def lengths(self) -> dict[str, int | None]:
        """Values of `LENGTHS`, by their names in manifests and reports."""
        return {recorded_name(name): getattr(self, name) for name in LENGTHS}


def phase_tables(value: Any) -> tuple[dict[str, Any], ...]:
    """Return the tables of `phases` with keys spelled like options; the preset written out."""
    if isinstance(value, Mapping):
        return _by_length({str(key).replace("-", "_"): value[key] for key in value})
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, Mapping) for each in value):
        raise ConfigError(f"phases is {brief(value)}, {_EXAMPLE}")
    if len(value) > _MOST:
        raise ConfigError(f"phases has {len(value)} entries, expected at most {_MOST}")
    return tuple(
        {
            key: counted(amount) if key in ("tokens", *LENGTHS) else amount
            for key, amount in with_new_names(
                {str(key).replace("-", "_"): each[key] for key in each}, f"phase {number}: "
            ).items()
        }
        for number, each in enumerate(value, 1)
    )


def checked_phases(
    tables: Sequence[Mapping[str, Any]],
    labels: Sequence[str],
    weights: Sequence[Fraction | None],
    max_tokens: int | None,
    lengths: Mapping[str, Any],
) -> tuple[Phase, ...]:
    """Return the checked entries of `phases`. Raises ConfigError that names the phase.

    labels, weights: of the sources. lengths: values of `LENGTHS` of the build.
    """
    amounts = [_amount(number, table) for number, table in enumerate(tables, 1)]
    percents = [amount for amount in amounts if isinstance(amount, Fraction)]
    if percents and len(percents) < len(amounts):
        raise ConfigError(
            "phases has shares and numbers of tokens; give tokens as percent in every phase, or "
            "as a number in every phase"
        )
    if percents and sum(percents) != 1:
        raise ConfigError(
            f"the tokens of the phases add up to {float(100 * sum(percents)):g}%, expected 100%"
        )
    if not percents and max_tokens is not None:
        raise ConfigError(
            "max_tokens is for phases with shares, and these have numbers of tokens; leave it out"
        )
    checked = []
    for number, (table, amount) in enumerate(zip(tables, amounts, strict=True), 1):
        share = amount if isinstance(amount, Fraction) else None
        tokens = amount if isinstance(amount, int) else None
        if share is not None and max_tokens is not None:
            tokens = int(max_tokens * share)
        checked.append(
            Phase(
                tokens=tokens,
                share=share,
                shares=_shares(number, table, labels, weights),
                **{name: table.get(name, lengths[name]) for name in LENGTHS},
            )
        )
    without = [number for number, phase in enumerate(checked, 1) if phase.shares is None]
    if without and len(without) < len(checked):
        raise ConfigError(
            f"phase {without[0]} has no weights and another has; give weights in every phase, or "
            "to the sources"
        )
    return tuple(checked)


def _by_length(preset: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Phases for classes of lengths that share the tokens before the mixed phase evenly."""
    for key in preset:
        if key not in _PRESET:
            raise ConfigError(f"phases has an unknown key {brief(key)}{nearest(key, _PRESET)}")
    ends = preset.get("by_length")
    if isinstance(ends, (list, tuple)):
        ends = [counted(end) for end in ends]
    if (
        not isinstance(ends, (list, tuple))
        or not ends
        or len(ends) >= _MOST
        or not all(type(end) is int and end > 0 for end in ends)
        or list(ends) != sorted(set(ends))
    ):
        raise ConfigError(
            f"phases has by_length {brief(ends)}, expected rising numbers of tokens such as "
            "[512, 2048]"
        )
    mixed = _percent("phases", "mixed", preset.get("mixed", "50%"))
    if not 0 < mixed < 1:
        raise ConfigError(
            f"phases has mixed {brief(preset['mixed'])}, expected more than 0% and less than 100%"
        )
    each = f"{100 * (1 - mixed) / (len(ends) + 1)}%"
    starts = [None, *(end + 1 for end in ends)]
    classes = [
        {"tokens": each}
        | ({} if start is None else {"min_document_tokens": start})
        | ({} if end is None else {"max_document_tokens": end})
        for start, end in zip(starts, [*ends, None], strict=True)
    ]
    return (*classes, {"tokens": f"{100 * mixed}%"})


def _amount(number: int, table: Mapping[str, Any]) -> int | Fraction:
    where = f"phase {number}"
    for key in table:
        if key not in _KEYS:
            raise ConfigError(f"{where} has an unknown key {brief(key)}{nearest(key[:100], _KEYS)}")
    for key in LENGTHS:
        if key in table and type(table[key]) is not int:
            raise ConfigError(f"{where} has {key} {brief(table[key])}, expected a whole number")
    tokens = table.get("tokens")
    if type(tokens) is int and 0 < tokens < 2**63:
        return tokens
    if isinstance(tokens, str) and tokens.strip().endswith("%"):
        share = _percent(where, "tokens", tokens)
        if 0 < share <= 1:
            return share
    raise ConfigError(
        f"{where} has tokens {brief(tokens)}, expected a share such as 80% or a whole number above "
        "0"
    )


def _percent(where: str, key: str, value: Any) -> Fraction:
    """Convert "80%" exactly; "400/3%" is allowed, since the preset writes it."""
    try:
        text = str(value).strip()
        if not text.endswith("%") or len(text) > 60 or "e" in text.lower():
            raise ValueError
        return Fraction(text.removesuffix("%").strip()) / 100
    except (ValueError, ZeroDivisionError):
        raise ConfigError(
            f"{where} has {key} {brief(value)}, expected a share such as 80%"
        ) from None


def _shares(
    number: int,
    table: Mapping[str, Any],
    labels: Sequence[str],
    weights: Sequence[Fraction | None],
) -> tuple[Fraction, ...] | None:
    """Share of each source in a phase; None without weights."""
    where = f"phase {number}"
    if "weights" not in table:
        numbers = [weight for weight in weights if weight is not None]
        return tuple(weight / sum(numbers) for weight in numbers) if numbers else None
    asked = table["weights"]
    if isinstance(asked, Mapping):
        for label in asked:
            if label not in labels:
                raise ConfigError(
                    f"{where} has a weight for {brief(label)}{nearest(str(label)[:100], labels)}"
                )
        if missing := [label for label in labels if label not in asked]:
            raise ConfigError(
                f"{where} has no weight for {missing[0]}; give one for each source, 0 for none of "
                "it"
            )
        asked = [asked[label] for label in labels]
    elif isinstance(asked, str):
        asked = asked.split(",")
    if not isinstance(asked, (list, tuple)) or len(asked) != len(labels):
        raise ConfigError(
            f"{where} has weights {brief(table['weights'])}, expected a number for each of "
            f"{len(labels)} sources"
        )
    checked = [_weight(where, label, each) for label, each in zip(labels, asked, strict=True)]
    if not sum(checked):
        raise ConfigError(f"{where} has only weights of 0; give one source a larger weight")
    return tuple(weight / sum(checked) for weight in checked)


def _weight(where: str, label: str, value: Any) -> Fraction:
    try:
        value = without_percent(value)
        if (
            isinstance(value, bool)
            or not 0 <= float(value) < 1e18
            or not math.isfinite(float(value))
        ):
            raise ValueError
        return Fraction(str(value).strip()) if float(value) else Fraction(0)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(
            f"{where} has weight {brief(value)} for {label}, expected a number of at least 0"
        ) from None
