"""Advice on packs that are not full: causes of low utilization, and how small a pack may be."""

LOW = 0.8
"""Utilization below which a plan gets advice; above 0.9 is good."""


def causes(
    utilization: float,
    *,
    packs: int,
    gap_share: float,
    max_length: int,
    strategy: str,
    max_segments_per_pack: int | None = None,
    grouped: bool = False,
    may_split: bool = True,
) -> list[str]:
    """Return causes of a utilization below LOW, each with its cure; none if it is not low.

    gap_share: packs above the lower bound, as a share of the bound. grouped: if documents of
    different groups share no pack. may_split: if overflow split is possible, and another.
    """
    if utilization >= LOW or not packs:
        return []
    if packs == 1:
        return [f"all documents fit one pack of {max_length:,} tokens; choose a smaller max_length"]
    found = []
    if gap_share > 0.02:
        found.append(
            f"strategy {strategy} makes {gap_share:.0%} more packs than are needed; choose "
            f"{'optimal' if strategy == 'best_fit' else 'best_fit'}"
        )
    if max_segments_per_pack is not None:
        found.append(
            f"a pack holds at most {max_segments_per_pack:,} documents; raise or leave out "
            "max_segments_per_pack"
        )
    if grouped:
        found.append("documents of different groups share no pack; join small groups")
    split = ", or split documents with --overflow split" if may_split else ""
    return found or [
        f"few documents fit together into {max_length:,} tokens; compare other lengths with "
        f"packprep plan SOURCES --max-length N,N{split}"
    ]


def fewest_tokens(max_length: int) -> tuple[int, int]:
    """Return the range in which min_pack_tokens is useful: max_length / 64 and max_length / 16.

    Below it, packs with hardly a token still cost a step; above it, useful text is dropped.
    """
    return max(1, max_length // 64), max(1, max_length // 16)


def small_packs(small: int, max_length: int) -> str:
    """Return a sentence on `small` packs with fewer than max_length / 64 tokens."""
    least, most = fewest_tokens(max_length)
    packs = f"{small:,} packs have" if small > 1 else "1 pack has"
    return (
        f"{packs} fewer than {least:,} tokens; --min-pack-tokens drops such packs, "
        f"and {least:,} to {most:,} (max_length/64 to /16) is usual"
    )


def outside_range(min_pack_tokens: int, max_length: int) -> str | None:
    """Return a sentence if min_pack_tokens is outside `fewest_tokens`; None if inside, or 0."""
    least, most = fewest_tokens(max_length)
    if not min_pack_tokens or least <= min_pack_tokens <= most:
        return None
    what = (
        "packs that are nearly empty stay"
        if min_pack_tokens < least
        else "packs with useful text may be dropped"
    )
    return (
        f"min_pack_tokens {min_pack_tokens:,}: {what}; {least:,} to {most:,} "
        f"(max_length {max_length:,} / 64 to / 16) is usual"
    )
