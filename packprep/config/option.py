"""The parts of which an option is made.

Its default, its help text, its stage, and whether it decides the bytes of the output (`identity`).
"""

from dataclasses import field
from typing import Any, Literal, get_args

COLUMN_CHOICE = (
    "position_ids",
    "document_ids",
    "document_starts",
)  # tokens and cu_seqlens are always written


# The part of a build that an option decides; whatever depends on a set of options is derived
# from these:
#   read      which rows there are, and in which units
#   rows      what one row is
#   tokens    the ids of a row
#   segments  how documents are filtered and cut
#   plan      which segments share a pack
#   order     the order of packs
#   output    windows, splits, columns and files
#   run       how a build works: never its bytes
#   once      this call alone: written to no file
Stage = Literal["read", "rows", "tokens", "segments", "plan", "order", "output", "run", "once"]

StrategyName = Literal[
    "best_fit", "first_fit", "knapsack", "optimal", "stream", "greedy", "wrapped", "balanced"
]
"""packing/strategies.py maps each to its function, but wrapped, which cuts documents."""
STRATEGY_NAMES: tuple[StrategyName, ...] = get_args(StrategyName)


def option(
    default: Any,
    stage: Stage,
    group: str,
    text: str,
    metavar: str = "N",
    *,
    identity: bool = True,
    per_source: bool = False,
    size: bool = False,
) -> Any:
    """A field with its help.

    metavar: the value's name on the help page. identity: whether the value decides bytes of the
    output; False where a digest of what it names does. per_source: a table in `sources` may have a
    value of its own. size: bytes.
    """
    return field(
        default=default,
        metadata={
            "stage": stage,
            "group": group,
            "help": text,
            "metavar": metavar,
            "identity": identity and stage not in ("run", "once"),
            "per_source": per_source,
            "size": size,
        },
    )
