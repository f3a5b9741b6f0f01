"""The 40 set-ups of the record make what they made before, and bad inputs are refused."""

import contextlib
import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from packprep import BuildConfig

from .helpers.errors import unsaid
from .record import running
from .record.refusals import CASES, Bad
from .record.setups import RECORDED, SETUPS


@pytest.mark.parametrize("name", SETUPS)
def test_a_set_up_has_the_recorded_values_and_figures(
    name: str, record_inputs: Path, tmp_path: Path
) -> None:
    setup = SETUPS[name]
    if setup.needs:
        pytest.importorskip(setup.needs)
    known = json.loads(RECORDED.read_bytes())
    assert [*known] == [*SETUPS]
    result = setup.run(record_inputs, tmp_path / "case")
    assert [*running.differences(known[name], result)] == []


def test_every_option_is_in_a_set_up() -> None:
    said = " ".join(str((setup.commands, setup.yaml)) for setup in SETUPS.values())
    words = {word.replace("-", "_") for word in re.findall(r"\w[\w-]*", said)}
    options = {spec.name for spec in fields(BuildConfig)} - {"after", "output", "overwrite"}
    assert options - words - {*running.GIVEN} == set()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.arguments)
def test_a_bad_input_is_refused_with_names_and_numbers(
    case: Bad, record_inputs: Path, tmp_path: Path
) -> None:
    with contextlib.chdir(running.started(tmp_path / "case", record_inputs, case.files)):
        code, error, sentence = running.command(case.arguments, case.yaml)
    assert (code, error) == (2, case.error), sentence
    assert unsaid(sentence, case.says.split()) == []
    assert "Traceback" not in sentence
