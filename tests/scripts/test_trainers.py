"""The adapters' table of docs/train/index.md, and what `scripts/check_trainers` prints.

The contracts themselves need the trainers: `scripts/check_trainers` runs them.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from packprep import loaders
from packprep.loaders import adapters
from tests.helpers.torch_models import skip_without

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "checks"))

import trainers  # noqa: E402

ROWS = trainers.rows()
PARTS = (  # of other calls, or checks of them
    "guard",
    "to_seq_idx",
    "to_flex_block_mask",
    "to_block_sparse",
    "seen_until",
    "tree_mask",
    "Isolation",
    "verify_isolation",
)


def test_the_page_has_the_table_of_the_record() -> None:
    assert "\n".join(trainers.table(ROWS)) in trainers.PAGE.read_text()


def test_every_adapter_is_in_the_table_and_no_cell_is_empty() -> None:
    listed = {call for row in ROWS for call in row["calls"]}
    assert {*adapters.__all__} - listed == {*PARTS}
    assert all(hasattr(loaders, call) for call in listed)
    for line in trainers.table(ROWS):
        assert all(cell.strip() for cell in line.strip("|").split("|")), line


def test_the_versions_that_every_test_run_proves_are_the_installed_ones() -> None:
    pins = dict(
        line.split("==")
        for line in (ROOT / "scripts" / "constraints.txt").read_text().split()
        if "==" in line
    )
    for row in ROWS:
        if row["test"].startswith("tests/"):
            assert (ROOT / row["test"]).is_file()
            assert row["versions"][-1] == pins[row["package"]], row["trainer"]


def test_every_package_of_the_table_has_checks() -> None:
    skip_without("torch", "transformers", "trl", "accelerate")
    from trainer_contracts import checks

    packages = [row["package"] for row in ROWS if not row.get("like")]
    assert [package for package in packages if not checks(package)] == []


RESULTS = [
    {"check": "trl one", "holds": True, "measured": "1.2e-06", "leak": False, "version": "9.9.9"},
    {"check": "trl leak", "holds": True, "measured": "2.5e-01", "leak": True, "version": "9.9.9"},
]
BROKEN = RESULTS[0] | {"check": "trl new", "holds": False, "measured": "3.0e-01"}


def test_what_was_proven_is_printed_and_recorded_and_what_broke_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, path in {"RECORD": tmp_path / "record", "PAGE": tmp_path / "page"}.items():
        path.write_text(getattr(trainers, name).read_text())
        monkeypatch.setattr(trainers, name, path)
    monkeypatch.setattr(trainers, "make_environment", lambda *_: Path(sys.executable))
    results = {"trl": RESULTS, "axolotl": [*RESULTS, BROKEN]}
    monkeypatch.setattr(trainers, "run_checks", lambda _, package: results[package])
    before = {row["package"]: row["versions"] for row in trainers.rows()}
    done = CliRunner().invoke(trainers.main, ["trl", "axolotl", "--newest", "--record"])
    assert done.exit_code == 1
    assert "ok      trl 9.9.9  2 checks, losses differ by 1e-06 at most: SFTTr" in done.output
    assert "BROKEN  axolotl 9.9.9  3 checks" in done.output
    assert done.output.endswith("BROKEN  trl new: 3.0e-01\n")
    versions = {row["package"]: row["versions"] for row in trainers.rows()}
    assert versions == before | {"trl": ["9.9.9"]}
    assert "\n".join(trainers.table(trainers.rows())) in (tmp_path / "page").read_text()


def test_a_package_that_cannot_be_installed_and_a_run_without_checks_are_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any) -> Path:
        raise subprocess.CalledProcessError(1, "pip", stderr="WARNING: slow\nERROR: none found\n")

    monkeypatch.setattr(trainers, "make_environment", refused)
    done = CliRunner().invoke(trainers.main, ["trl"])
    assert (done.exit_code, "could not be installed: ERROR: none" in done.output) == (1, True)
    monkeypatch.setattr(trainers, "CONTRACTS", "no_such_file")
    (result,) = trainers.run_checks(Path(sys.executable), "trl")
    assert (result["holds"], "no_such_file" in result["measured"]) == (False, True)
