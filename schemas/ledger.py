"""The ledger: what became of every token, as one equation."""

from collections.abc import Mapping
from typing import Any

from .errors import FormatError

LEDGER_KEYS = (
    "tokens_in",
    "overlap",
    "continuation_bos",
    "filler",
    "tokens_packed",
    "truncated",
    "dropped",
)


def check_ledger(ledger: Mapping[str, Any], where: str = "ledger") -> None:
    """Raise FormatError unless the ledger adds up.

    tokens_in + overlap + continuation_bos + filler == tokens_packed + truncated + sum(dropped).

    ledger: the keys LEDGER_KEYS and no other; counts of tokens, 0 or more; `dropped` maps a reason
    to its count.
    """
    if not isinstance(ledger, Mapping) or set(ledger) != set(LEDGER_KEYS):
        raise FormatError(
            f"{where} is {ledger!r}; expected a table with the keys {', '.join(LEDGER_KEYS)}"
        )
    dropped = ledger["dropped"]
    if not isinstance(dropped, Mapping):
        raise FormatError(
            f"{where} has dropped = {dropped!r}; expected a table from reason to tokens"
        )
    counts = {key: ledger[key] for key in LEDGER_KEYS if key != "dropped"}
    counts |= {f"dropped.{reason}": count for reason, count in dropped.items()}
    for key, count in counts.items():
        if type(count) is not int or count < 0:
            raise FormatError(
                f"{where} has {key} = {count!r}; expected a count of tokens, 0 or more"
            )
    put_in = sum(ledger[key] for key in ("tokens_in", "overlap", "continuation_bos", "filler"))
    came_out = ledger["tokens_packed"] + ledger["truncated"] + sum(dropped.values())
    if put_in != came_out:
        raise FormatError(
            f"{where} does not balance: tokens_in + overlap + continuation_bos + filler = "
            f"{put_in}, but "
            f"tokens_packed + truncated + dropped = {came_out}; {abs(put_in - came_out)} tokens "
            "are unaccounted for"
        )
