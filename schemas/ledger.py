"""The ledger: the outcome of every token, as one equation."""

from collections.abc import Mapping

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


def check_ledger(ledger: object, where: str = "ledger") -> None:
    """Raise FormatError unless the ledger adds up.

    tokens_in + overlap + continuation_bos + filler == tokens_packed + shared + truncated +
    sum(dropped).

    ledger: the keys LEDGER_KEYS, and `shared` if rows share prefixes; counts of tokens, 0 or more;
    `dropped` maps each reason to its count.
    """
    if not isinstance(ledger, Mapping) or set(ledger) - {"shared"} != set(LEDGER_KEYS):
        raise FormatError(
            f"{where} is {ledger!r}; expected an object with the keys {', '.join(LEDGER_KEYS)}"
        )
    dropped = ledger["dropped"]
    if not isinstance(dropped, Mapping):
        raise FormatError(
            f"{where} has dropped = {dropped!r}; expected an object that maps reasons to tokens"
        )
    counts = {key: ledger[key] for key in ledger if key != "dropped"}
    counts |= {f"dropped.{reason}": count for reason, count in dropped.items()}
    for key, count in counts.items():
        if type(count) is not int or count < 0:
            raise FormatError(
                f"{where} has {key} = {count!r}; expected a count of tokens, 0 or more"
            )
    total_in = sum(ledger[key] for key in ("tokens_in", "overlap", "continuation_bos", "filler"))
    kept = ledger["tokens_packed"] + ledger.get("shared", 0)
    total_out = kept + ledger["truncated"] + sum(dropped.values())
    if total_in != total_out:
        raise FormatError(
            f"{where} does not balance: tokens_in + overlap + continuation_bos + filler = "
            f"{total_in}, but tokens_packed {'+ shared ' * ('shared' in ledger)}+ truncated + "
            f"dropped = {total_out}; {abs(total_in - total_out)} tokens are unaccounted for"
        )
