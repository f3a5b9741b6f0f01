"""The law of the ledger: every input token is packed, truncated or dropped, and counted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas import FormatError, check_ledger
from packprep.schemas.ledger import LEDGER_KEYS

BALANCED: dict[str, Any] = {
    "tokens_in": 100,
    "overlap": 8,
    "continuation_bos": 2,
    "filler": 10,
    "tokens_packed": 90,
    "truncated": 20,
    "dropped": {"too_short": 7, "too_long": 3},
}


def test_a_ledger_that_balances_passes() -> None:
    check_ledger(BALANCED)


@given(st.sampled_from([*LEDGER_KEYS[:-1], "dropped.too_short"]), st.integers(1, 10**15))
def test_one_number_off_does_not_balance(key: str, by: int) -> None:
    wrong = {**BALANCED, "dropped": dict(BALANCED["dropped"])}
    table, name = (wrong["dropped"], "too_short") if "." in key else (wrong, key)
    table[name] += by
    with pytest.raises(FormatError, match=f"does not balance.*; {by} tokens are unaccounted for"):
        check_ledger(wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({**BALANCED, "tokens_in": -1}, "tokens_in = -1; expected a count"),
        ({**BALANCED, "tokens_in": 100.0}, "tokens_in = 100.0; expected a count"),
        ({**BALANCED, "overlap": True}, "overlap = True; expected a count"),
        ({**BALANCED, "dropped": {"too_short": "7"}}, "dropped.too_short = '7'; expected a count"),
        ({**BALANCED, "dropped": 10}, "dropped = 10; expected an object"),
        ({**BALANCED, "lost": 0}, "expected an object with the keys tokens_in, "),
        ({}, "expected an object with the keys tokens_in, "),
        (None, "expected an object with the keys tokens_in, "),
    ],
)
def test_a_ledger_of_another_form_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message.replace(".", r"\.")):
        check_ledger(wrong)
