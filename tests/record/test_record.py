"""What this tree makes of the set-ups and bad inputs of the record; see README.md."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig

from . import inputs, spellings
from .main import FOLDER, PARTS, differing, fast, recorded
from .running import Case, plain, run

LARGEST = 1_000_000  # bytes of all files

RECORDED = {part: recorded(part) for part in PARTS}


def spread(part: str) -> list[Any]:
    """The cases of a file, most of them in long runs only."""
    cases = PARTS[part]()
    chosen = fast(cases)
    return [
        pytest.param(case, marks=[pytest.mark.long] * (case not in chosen), id=case.name)
        for case in cases
    ]


def assert_as_recorded(part: str, case: Case, record_inputs: Path, folder: Path) -> None:
    if case.needs:
        pytest.importorskip(case.needs)
    known = RECORDED[part].get(case.name)
    assert known is not None, f"{case.name} is not in the record; run scripts/record"
    assert differing(case, known, run(case, record_inputs, folder / "case"), "first") == []


@pytest.mark.parametrize("case", spread("setups"))
def test_a_set_up_has_the_recorded_values_and_figures(
    case: Case, record_inputs: Path, tmp_path: Path
) -> None:
    assert_as_recorded("setups", case, record_inputs, tmp_path)


@pytest.mark.parametrize("case", spread("refusals"))
def test_a_bad_input_is_refused_as_recorded(
    case: Case, record_inputs: Path, tmp_path: Path
) -> None:
    assert_as_recorded("refusals", case, record_inputs, tmp_path)


def test_every_option_that_stays_is_in_a_set_up() -> None:
    cases = PARTS["setups"]()
    used = spellings.used([each for case in cases for each in case.commands("second")])
    assert used == {*spellings.HOW}
    first = {name for case in cases for _, options in case.steps for name in options}
    stays = {spec.name for spec in fields(BuildConfig)} - {*spellings.GOES}
    assert first - {"dry_run", "quiet", "include"} == stays


@pytest.mark.parametrize("part", PARTS)
def test_the_record_has_the_cases_and_spellings_of_its_tables(part: str) -> None:
    cases = {case.name: case for case in PARTS[part]()}
    assert [*RECORDED[part]] == [*cases]
    for name, case in cases.items():
        for edition in ("first", "second"):
            assert RECORDED[part][name][edition] == plain(case.commands(edition)), name


def test_the_record_is_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.json")) < LARGEST


def test_inputs_are_those_of_the_record(record_inputs: Path) -> None:
    head = json.loads((FOLDER / "setups.json").read_bytes())["head"]
    assert head["tokenizers"] == inputs.digests(record_inputs)
