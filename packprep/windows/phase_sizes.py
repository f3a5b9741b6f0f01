"""The largest total that all phases can supply: a sum over classes of documents.

Documents of one source that the same phases take are a class, and a draw by hash takes the same
part of each of its stretches. So the part that is used of a class is one number, and a phase raises
the lowest ones first.

Example: A has 900 tokens and B 300, and both phases take half of B: 600 tokens in all, whatever the
shares of the phases are.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from packprep.config.grammar.phases import Phase

Classes = Mapping[tuple[int, int], Sequence[int]]
"""Tokens by (source, class), for each phase. Bit p of a class: phase p takes its documents."""

_STEPS = 80  # halvings; more than the bits of a float


def largest_total(
    phases: Sequence[Phase], most: Sequence[Fraction], classes: Classes
) -> tuple[int, tuple[int, int]]:
    """Most tokens that the shares of all phases allow, and the phase and source that limit it.

    most: times that each source may be used.
    """
    low, high = 0.0, 1.0
    limit = (0, 0)
    bound = 1 + sum(float(most[source]) * max(sizes) for (source, _), sizes in classes.items())
    high = bound * len(phases)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        amounts = [float(phase.share or 0) * middle for phase in phases]
        short, _ = uses(phases, amounts, most, classes)
        if short is None:
            low = middle
        else:
            high, limit = middle, short
    return int(low + 1e-6), limit


def uses(
    phases: Sequence[Phase], amounts: Sequence[float], most: Sequence[Fraction], classes: Classes
) -> tuple[tuple[int, int] | None, dict[tuple[int, int], float]]:
    """Copies used of each class when the phases take these amounts of tokens.

    Also the first phase and source that cannot supply its amount, if any; later phases are then
    left out.
    """
    used = dict.fromkeys(classes, 0.0)
    for number, (phase, wanted) in enumerate(zip(phases, amounts, strict=True)):
        members = [
            [key for key in classes if key[0] == source and key[1] >> number & 1]
            for source in range(len(most))
        ]
        left = [
            sum(classes[key][number] * max(0.0, float(most[source]) - used[key]) for key in keys)
            for source, keys in enumerate(members)
        ]
        for source, keys in enumerate(members):
            share = (
                left[source] / (sum(left) or 1) if phase.shares is None else phase.shares[source]
            )
            amount = wanted * float(share)
            if amount > left[source] * (1 + 1e-12):
                return (number, source), used
            level = _raised([(used[key], classes[key][number]) for key in keys], amount)
            for key in keys:
                used[key] = max(used[key], level)
        if wanted > sum(left) * (1 + 1e-12):
            return (number, max(range(len(most)), key=lambda source: -left[source])), used
    return None, used


def _raised(members: Sequence[tuple[float, int]], amount: float) -> float:
    """The level to which the lowest members rise when they supply this many tokens.

    members: level and tokens. Example: [(0, 10), (1, 10)] and 30 tokens -> 2.
    """
    tokens, level = 0, 0.0
    for before, more in sorted(members):
        if tokens and amount <= (before - level) * tokens:
            break
        amount -= (before - level) * tokens
        level, tokens = before, tokens + more
    return level + amount / tokens if tokens else level
