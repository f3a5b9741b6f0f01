"""What the second edition makes of the recorded set-ups and bad inputs of text and token ids.

`scripts/record --check --edition second` prints what differs of all of them.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.record.main import PARTS, differing, fast, recorded
from tests.record.running import Case, run

COMMANDS = {"build", "tokenize", "pack", "verify", "export"}
LATER = {
    "--part",
}
"""Arguments of later parts."""
OPEN = {
    "together, one side of a pair",  # its spelling is a pair of the prompt and the answer
    "pieces, a text",  # it is rendered text
    "ids, text",
    "ids, a fraction",  # ids of the vocabulary are expected, not all that four bytes hold
    "file, an array not closed",  # its line is named, not its row
    "file, a broken element",
    "file, an array and more",
    "compressed .zst, not compressed",  # another byte is named
}
"""Cases of this part that differ still, most by a number in a sentence or in the report."""


def is_of_this_part(case: Case) -> bool:
    """True for text and token ids, from files to shards."""
    commands = case.commands("second")
    used = {argument for each in commands for argument in each["arguments"]}
    known = all(each["command"] in COMMANDS for each in commands)
    return known and not LATER & used


def cases(part: str) -> list[Any]:
    """The cases of this part, most of them in long runs only."""
    chosen = fast(PARTS[part]())
    return [
        pytest.param(case, marks=[pytest.mark.long] * (case not in chosen), id=case.name)
        for case in PARTS[part]()
        if is_of_this_part(case) and case.name not in OPEN
    ]


@pytest.mark.parametrize("case", cases("setups"))
def test_a_set_up_has_the_values_and_figures_of_the_first_edition(
    case: Case, record_inputs: Path, tmp_path: Path
) -> None:
    if case.needs:
        pytest.importorskip(case.needs)
    result = run(case, record_inputs, tmp_path / "case", "second")
    assert differing(case, recorded("setups")[case.name], result, "second") == []


@pytest.mark.parametrize("case", cases("refusals"))
def test_a_bad_input_is_refused_like_by_the_first_edition(
    case: Case, record_inputs: Path, tmp_path: Path
) -> None:
    result = run(case, record_inputs, tmp_path / "case", "second")
    assert differing(case, recorded("refusals")[case.name], result, "second") == []
