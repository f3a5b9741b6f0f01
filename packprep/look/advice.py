"""Sentences on plans: which one is the fullest, and why packs of others are not full."""

from collections.abc import Iterator, Sequence

from .findings import Facts, cause_of_room
from .plan import Origin, Planned

_LOW = 0.9  # utilization below which packs are worth a look
_LOST = 0.01  # share of tokens that the fullest plan may lose, unless every plan loses more


def name_of(plan: Planned) -> str:
    """Name of a plan. Example: 8,192 best_fit split."""
    length, *others = plan.choice
    words = [f"{length:,}" if isinstance(length, int) else length, *others]
    return " ".join(word for word in words if word)


def _merits(plan: Planned) -> tuple[float, float, int]:
    """Utilization, and where it is the same to a thousandth, few lost tokens and few cuts."""
    full, lost = (round(plan.report[key], 3) for key in ("utilization", "tokens_lost_share"))
    return full, -lost, -plan.report["segments"]


def notes(origin: Origin, plans: Sequence[Planned], padding: int | None) -> Iterator[str]:
    """Sentences on plans: of a sample, the fullest, causes with cures.

    padding: documents of a padded batch, if that is asked for.
    """
    if origin.share < 1:
        yield f"of a sample, {origin.share:.3%} of it: counts are scaled to the whole"
    made = [plan for plan in plans if plan.report]
    if len(made) > 1:
        most = max(_LOST, min(plan.report["tokens_lost_share"] for plan in made))
        keep = [plan for plan in made if plan.report["tokens_lost_share"] <= most]
        best = name_of(max(keep, key=_merits))
        yield f"fullest packs, of plans that lose at most {100 * most:.3g}%: {best}"
    for plan in plans:
        name = f"{name_of(plan)}: " if len(plans) > 1 else ""
        if not plan.report:
            yield f"{name}left out: {plan.problem}"
        elif (full := plan.report["utilization"]) < _LOW:
            facts = Facts(plan.report, plan.config.deciding(), {}, pairs=origin.pairs)
            cause, cure = cause_of_room(facts)
            yield f"{name}packs are filled to {full:.0%} only: {cause}; {cure}"
    by_length = {plan.choice[0]: plan for plan in made[::-1]}
    small = origin.config.min_pack_tokens
    for length in by_length if small else ():
        least, most = max(1, length // 64), max(1, length // 16)
        if not least <= small <= most:
            yield f"--min-pack-tokens {small:,}: {least:,} to {most:,} are usual at {length:,}"
    for length, plan in by_length.items() if padding else ():
        share = plan.report["padding_of_batch"]
        yield (
            f"{length:,}: {share:.1%} of batches of {padding:,} documents, each padded to its "
            f"longest, would be padding: {1 / (1 - share):.2f} places for each token"
        )
