"""Definition of one option: default, help text, and the value's part in the identity."""

from dataclasses import field
from typing import Any, Literal, get_args

COLUMN_CHOICE = (
    "position_ids",
    "document_ids",
    "document_starts",
)  # tokens and cu_seqlens are always written


TRAIN_FIELDS = ("content", "reasoning", "tool_calls")  # of a message of the assistant

StrategyName = Literal[
    "best_fit",
    "first_fit",
    "knapsack",
    "optimal",
    "stream",
    "greedy",
    "first_fit_input",
    "wrapped",
    "balanced",
]
"""packing/strategies.py has a function for each but wrapped, which cuts documents."""
STRATEGY_NAMES: tuple[StrategyName, ...] = get_args(StrategyName)


def option(
    default: Any,
    text: str,
    metavar: str = "N",
    *,
    common: bool = False,
    identity: bool | Literal["later"] = True,
    earlier: tuple[Any, ...] = (),
    per_source: bool = False,
    least: int | None = None,
    setting: type | None = None,
) -> Any:
    """Define a field with its help text.

    metavar: the name of the value on the help page; SIZE for bytes, SHARE for a share.
    common: True for what most builds need: `-h` shows it, `--help-all` shows the others too.
    identity: False if the value does not decide the bytes of the output, or a digest of the thing
    it names does. "later" for an option that older builds lack: a build does not record it while it
    has its first default, which means as before.
    earlier: the defaults that it had before, the first one first: whoever changes the default adds
    it here, so that outputs of before stay those of the same command.
    per_source: a table in `sources` may set it.
    least: the smallest number that it may be.
    setting: its class in settings.py, for a value with parts.
    """
    return field(
        default=default,
        metadata={
            "help": text,
            "metavar": metavar,
            "common": common,
            "identity": identity,
            "earlier": earlier,
            "per_source": per_source,
            "least": least,
            "setting": setting,
        },
    )
