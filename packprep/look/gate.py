"""The gate: the figures of a report against limits, and against those of a baseline.

A tolerance is how much worse a figure may get: 0.001, or 5% of its baseline. One that gets better
passes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..config.grammar import share_of
from ..plan.types import Dropped
from ..support.errors import ConfigError, nearest
from .figures import FIGURES, GAIN, OF_SOURCE, Report, as_text, figure_of, values

_ROUNDING = 1e-12  # relative: 0.999 - 0.998 is not exactly 0.001 in binary
_SOURCES = 3  # named in a sentence


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A figure against a limit, or a baseline. baseline: None of a limit.

    value: None if the report lacks it. worse: by how much it is worse than allowed, 0 if it passes.
    allowed: in words. sources: those with most of a count that failed, with theirs.
    """

    name: str
    value: float | None
    baseline: float | None
    worse: float
    allowed: str
    sources: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True if it is as good as it must be."""
        return self.value is not None and self.worse <= 0

    @property
    def cure(self) -> str:
        """Cure if it failed."""
        reason = self.name.removeprefix("tokens.dropped.")
        known = {each.value: each.cure for each in Dropped}
        return known.get(reason, figure_of(self.name).cure)

    @property
    def sentence(self) -> str:
        """The figure that failed, by how much, and the cure."""
        now = f"{self.name} is {as_text(self.name, self.value)}"
        if self.baseline is not None:
            now += f" and was {as_text(self.name, self.baseline)}"
        by = f": {_amount(self.name, self.worse)} too much" if self.worse else ""
        sources = f" ({', '.join(self.sources)})" if self.sources else ""
        cure = f"; {self.cure}" if self.cure else ""
        return f"{now}; {self.allowed}{by}{sources}{cure}"


def check(
    report: Report,
    against: Report | None = None,
    tolerances: Sequence[str] = (),
    *,
    min_utilization: str | None = None,
    max_lost: str | None = None,
) -> Iterator[Verdict]:
    """Verdicts on limits, and on every figure with a tolerance. against: of the baseline.

    tolerances: NAME=AMOUNT each, over those of the table. min_utilization, max_lost: shares. Raises
    ConfigError for one that means nothing.
    """
    now = values(report)
    limits = (
        ("utilization", "--min-utilization", min_utilization, "at least", 1),
        ("tokens_lost_share", "--max-lost", max_lost, "at most", -1),
    )
    for name, flag, text, words, sign in limits:
        if text is not None:
            limit, value = share_of(text), now.get(name)
            if limit is None or limit > 1:
                raise ConfigError(f"{flag} is {text!r}, expected a share such as 0.98 or 98%")
            allowed = f"it must be {words} {as_text(name, float(limit))}"
            worse = 0.0 if value is None else sign * (float(limit) - value)
            yield Verdict(name=name, value=value, baseline=None, worse=worse, allowed=allowed)
    if against is not None:
        yield from _compared(now, values(against), tolerances)


def _compared(
    now: Mapping[str, float], before: Mapping[str, float], tolerances: Sequence[str]
) -> Iterator[Verdict]:
    names = [*dict.fromkeys([*now, *before])]
    asked = _asked(tolerances, names)
    for name in (each for each in names if each in asked or not each.startswith(OF_SOURCE)):
        row = figure_of(name)
        missing = 0 if row.unit == "count" else None  # a reason that did not occur
        value, baseline = now.get(name, missing), before.get(name, missing)
        tolerance = asked.get(name, row.tolerance)
        if tolerance is None or baseline is None:
            continue
        amount = float(share_of(tolerance) or 0) * (abs(baseline) if "%" in tolerance else 1)
        gain, words = GAIN.get(row.better, GAIN["same"]), _WORDS.get(row.better, "it may change")
        allowed = words.replace("may", "may not")
        if amount:
            allowed = f"{words} by {_amount(name, amount)}"
        worse = 0.0 if value is None else -gain(value, baseline) - amount
        if worse <= _ROUNDING * max(1.0, abs(baseline)):
            worse = 0.0
        yield Verdict(
            name=name,
            value=value,
            baseline=baseline,
            worse=worse,
            allowed=allowed,
            sources=_sources(now, name) if worse and row.unit == "count" else (),
        )


def _asked(tolerances: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Tolerances by full name. NAME may have * for anything."""
    asked = dict[str, str]()
    for text in tolerances:
        name, _, amount = text.rpartition("=")
        if not name or share_of(amount) is None:
            expected = "NAME=AMOUNT, such as utilization=0.002 or tokens.truncated=1%"
            raise ConfigError(f"--tolerance is {text!r}, expected {expected}")
        meant = [each for each in names if each == name] or [
            each for each in names if fnmatchcase(each, name)
        ]
        if not meant and not any(fnmatchcase(name, row.name) for row in FIGURES):
            raise ConfigError(f"--tolerance names {name!r}{nearest(name, names)}")
        asked |= dict.fromkeys(meant, amount)
    return asked


_WORDS = {"higher": "it may fall", "lower": "it may rise", "lower above 1": "above 1 it may rise"}


def _amount(name: str, amount: float) -> str:
    return as_text(name, amount, change=True).removeprefix("+")


def _sources(values: Mapping[str, float], name: str) -> tuple[str, ...]:
    """Sources with most of a count, with theirs."""
    counts = {
        each.removeprefix(OF_SOURCE).removesuffix(f".{name}"): value
        for each, value in values.items()
        if each.startswith(OF_SOURCE) and each.endswith(f".{name}") and value
    }
    most = sorted(counts, key=lambda each: -counts[each])[:_SOURCES]
    return tuple(f"{source} {as_text(name, counts[source])}" for source in most)
