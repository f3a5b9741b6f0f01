"""Short runs of what `python -m tests.faults.fuzz` does for long."""

from .corpora import check_corpora
from .fuzz import fuzz_readers
from .mixes import check_mixes


def test_readers_of_damaged_outputs_read_or_raise_format_error_and_nothing_else() -> None:
    tally = fuzz_readers(seconds=60, seed=7, cases=150)
    assert tally.outcomes.total() == tally.cases >= 50
    assert (
        sum(count for outcome, count in tally.outcomes.items() if outcome.endswith("refused"))
        > tally.cases / 2
    )
    assert sum(count for outcome, count in tally.outcomes.items() if outcome.endswith("read")) > 0


def test_every_token_of_random_corpora_is_on_disk_or_in_the_ledger() -> None:
    tally = check_corpora(30, 7)
    assert tally.outcomes["built"] > 15


def test_verify_is_silent_on_random_mixes_that_repeat_documents() -> None:
    tally = check_mixes(20, 7)
    assert {"text", "chat", "ids", "pairs", "wrapped", "split", "drop", "truncate left"} <= set(
        tally.outcomes
    )
