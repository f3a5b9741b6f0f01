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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from packprep.config.grammar.amounts import counted, exact, without_percent
from packprep.config.grammar.rules import Rule, enforce, unknown
from packprep.config.grammar.spellings import recorded_name

_MOST = 32
LENGTHS = ("max_length", "min_document_tokens", "max_document_tokens")
_KEYS = ("tokens", "weights", *LENGTHS)
_PRESET = ("by_length", "mixed")


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


@dataclass(frozen=True)
class _Written:
    """One table of `phases`, and the labels of the sources. number: from 1."""

    number: int
    table: Mapping[str, Any]
    labels: Sequence[str]

    @property
    def amount(self) -> int | Fraction | None:
        """Tokens, or their share of the total; None for a wrong value."""
        tokens = self.table.get("tokens")
        amount = tokens if type(tokens) is int else _percent(tokens)
        most = 1 if isinstance(amount, Fraction) else 2**63 - 1
        return amount if amount is not None and 0 < amount <= most else None

    @property
    def weights(self) -> Any:
        """The value of `weights`, in the order of the sources."""
        weights = self.table.get("weights")
        if isinstance(weights, Mapping):
            return [weights.get(label) for label in self.labels]
        return weights.split(",") if isinstance(weights, str) else weights

    @property
    def numbers(self) -> list[Fraction | None]:
        """Weight of each source, None for a wrong one; empty without weights."""
        numbers = (exact(without_percent(weight)) for weight in self.weights or ())
        return [
            number if number is not None and 0 <= number < 10**18 else None for number in numbers
        ]

    def named(self) -> Mapping[str, Any]:
        """Weights by the labels of sources, if they are written so."""
        weights = self.table.get("weights")
        return weights if isinstance(weights, Mapping) else dict.fromkeys(self.labels)


@dataclass(frozen=True)
class _Together:
    """All tables of `phases`, max_tokens, and true if the sources have weights."""

    phases: Sequence[_Written]
    max_tokens: int | None
    weighted: bool

    @property
    def shares(self) -> list[Fraction]:
        """Shares of the total, of the phases that have one."""
        amounts = (phase.amount for phase in self.phases)
        return [amount for amount in amounts if isinstance(amount, Fraction)]


LIST_RULES: tuple[Rule[Any], ...] = (
    Rule(
        "--phases is {value!r}, expected a list of tables such as {{tokens: 80%, weights: "
        "[70, 30], max_length: 4096}}",
        lambda value: (
            not isinstance(value, Mapping)
            and not (
                isinstance(value, (list, tuple))
                and all(isinstance(each, Mapping) for each in value)
            )
            and {"value": value}
        ),
    ),
    Rule(
        f"--phases has {{count}} entries, expected at most {_MOST}",
        lambda value: len(value) > _MOST and {"count": len(value)},
    ),
)

PRESET_RULES: tuple[Rule[Mapping[str, Any]], ...] = (
    Rule("--phases has an unknown key {name!r}{near}", lambda preset: unknown(preset, _PRESET)),
    Rule(
        "--phases has by_length {by_length!r}, expected rising numbers of tokens such as "
        "[512, 2048]",
        lambda preset: not _rise(preset["by_length"]) and preset,
    ),
    Rule(
        "--phases has mixed {mixed!r}, expected a share of more than 0% and less than 100%",
        lambda preset: not 0 < (_percent(preset["mixed"]) or 0) < 1 and preset,
    ),
)

PHASE_RULES: tuple[Rule[_Written], ...] = (
    Rule(
        "phase {number} has an unknown key {name!r}{near}",
        lambda phase: unknown(phase.table, _KEYS),
    ),
    Rule(
        "phase {number} has {key} {value!r}, expected a whole number",
        lambda phase: (
            {"key": key, "value": phase.table[key]}
            for key in LENGTHS
            if key in phase.table and type(phase.table[key]) is not int
        ),
    ),
    Rule(
        "phase {number} has tokens {tokens!r}, expected a share such as 80% or a whole number "
        "above 0",
        lambda phase: phase.amount is None and {"tokens": phase.table.get("tokens")},
    ),
    Rule(
        "phase {number} has a weight for {name!r}{near}",
        lambda phase: unknown(phase.named(), phase.labels),
    ),
    Rule(
        "phase {number} has no weight for {name}; give one for each source, 0 for none of it",
        lambda phase: unknown(phase.labels, phase.named()),
    ),
    Rule(
        "phase {number} has weights {weights!r}, expected a number for each of {sources} sources",
        lambda phase: (
            "weights" in phase.table
            and not (
                isinstance(phase.weights, (list, tuple)) and len(phase.weights) == len(phase.labels)
            )
            and {"sources": len(phase.labels)}
        ),
    ),
    Rule(
        "phase {number} has weight {weight!r} for {label}, expected a number of at least 0",
        lambda phase: (
            {"weight": phase.weights[at], "label": phase.labels[at]}
            for at, number in enumerate(phase.numbers)
            if number is None
        ),
    ),
    Rule(
        "phase {number} has only weights of 0; give one source a larger weight",
        lambda phase: phase.numbers and not any(phase.numbers),
    ),
)

PHASES_RULES: tuple[Rule[_Together], ...] = (
    Rule(
        "--phases has shares and numbers of tokens; give tokens as percent in every phase, or as "
        "a number in every phase",
        lambda all_: 0 < len(all_.shares) < len(all_.phases),
    ),
    Rule(
        "the tokens of the phases add up to {total:g}%, expected 100%",
        lambda all_: (
            all_.shares and (total := sum(all_.shares)) != 1 and {"total": float(100 * total)}
        ),
    ),
    Rule(
        "--max-tokens is for phases with shares, and these have numbers of tokens; leave it out",
        lambda all_: all_.max_tokens is not None and not all_.shares,
    ),
    Rule(
        "phase {number} has no weights and another has; give weights in every phase, or to the "
        "sources",
        lambda all_: (
            not all_.weighted
            and any(phase.numbers for phase in all_.phases)
            and ({"number": phase.number} for phase in all_.phases if not phase.numbers)
        ),
    ),
)


def phase_tables(value: Any) -> tuple[dict[str, Any], ...]:
    """Return the tables of `phases` with keys spelled like options; the preset written out."""
    enforce(LIST_RULES, value)
    if isinstance(value, Mapping):
        return _by_length({str(key).replace("-", "_"): value[key] for key in value})
    return tuple(
        {
            key: counted(amount) if key in ("tokens", *LENGTHS) else amount
            for key, amount in each.items()
        }
        for each in value
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
    phases = [_Written(number, table, labels) for number, table in enumerate(tables, 1)]
    for phase in phases:
        enforce(PHASE_RULES, phase)
    of_sources = [weight for weight in weights if weight is not None]
    enforce(PHASES_RULES, _Together(phases, max_tokens, bool(of_sources)))
    return tuple(_phase(phase, of_sources, max_tokens, lengths) for phase in phases)


def _phase(
    written: _Written,
    of_sources: Sequence[Fraction],
    max_tokens: int | None,
    lengths: Mapping[str, Any],
) -> Phase:
    amount = written.amount
    share = amount if isinstance(amount, Fraction) else None
    tokens = amount if isinstance(amount, int) else None
    if share is not None and max_tokens is not None:
        tokens = int(max_tokens * share)
    weights = [number for number in written.numbers if number is not None] or of_sources
    return Phase(
        tokens=tokens,
        share=share,
        shares=tuple(weight / sum(weights) for weight in weights) or None,
        **{name: written.table.get(name, lengths[name]) for name in LENGTHS},
    )


def _by_length(preset: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Phases for classes of lengths that share the tokens before the mixed phase evenly."""
    preset = {"by_length": (), "mixed": "50%"} | preset
    ends = preset["by_length"]
    if isinstance(ends, (list, tuple)):
        ends = [counted(end) for end in ends]
    enforce(PRESET_RULES, preset | {"by_length": ends})
    mixed = _percent(preset["mixed"]) or 0
    each = f"{100 * (1 - mixed) / (len(ends) + 1)}%"
    classes = [
        {"tokens": each}
        | ({} if start is None else {"min_document_tokens": start})
        | ({} if end is None else {"max_document_tokens": end})
        for start, end in zip([None, *(end + 1 for end in ends)], [*ends, None], strict=True)
    ]
    return (*classes, {"tokens": f"{100 * mixed}%"})


def _rise(ends: object) -> bool:
    """True for a list of whole numbers above 0, each above the one before."""
    return (
        isinstance(ends, list)
        and 0 < len(ends) < _MOST
        and all(type(end) is int and end > 0 for end in ends)
        and ends == sorted({*ends})
    )


def _percent(value: object) -> Fraction | None:
    """Convert "80%" exactly; "400/3%" is allowed, since the preset writes it."""
    text = str(value).strip() if isinstance(value, str) else ""
    if not text.endswith("%") or len(text) > 60 or "e" in text.lower():
        return None
    try:
        return Fraction(text.removesuffix("%").strip()) / 100
    except (ValueError, ZeroDivisionError):
        return None
