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
            assert row["versions"][-1] == pins[row["package"]], row["trainer"]


def test_every_package_of_the_table_has_checks() -> None:
    skip_without("torch", "transformers", "trl", "accelerate")
    from tests.helpers.trainers import checks

    packages = [row["package"] for row in ROWS if not row.get("like")]
    assert [package for package in packages if not checks(package)] == []


RESULTS = [
    {"check": "trl one", "holds": True, "measured": "1.2e-06", "leak": False, "version": "1.16.0"},
    {"check": "trl leak", "holds": True, "measured": "2.5e-01", "leak": True, "version": "1.16.0"},
    {"check": "trl two", "holds": True, "measured": "equal", "leak": False, "version": "1.16.0"},
]
BROKEN = RESULTS[0] | {"check": "trl new", "holds": False, "measured": "3.0e-01"}
PROOF = "SFTTrainer with and without --names hf: losses"


def ran(monkeypatch: pytest.MonkeyPatch, results: Any, *arguments: str) -> tuple[int, str]:
    """Run the script with these results of checks. Returns its code and output."""
    monkeypatch.setattr(trainers, "make_environment", lambda *_: Path(sys.executable))
    monkeypatch.setattr(trainers, "run_checks", results)
    done = CliRunner().invoke(trainers.main, list(arguments))
    return done.exit_code, done.output


def test_a_line_for_each_package_and_for_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    words = f"checks, losses differ by 1e-06 at most: {PROOF}\n"
    code, said = ran(monkeypatch, lambda *_: RESULTS, "trl")
    assert (code, said) == (0, f"ok      trl 1.16.0  3 {words}")
    code, said = ran(monkeypatch, lambda *_: [*RESULTS, BROKEN], "trl")
    assert (code, said) == (
        1,
        f"BROKEN  trl 1.16.0  4 {words}        BROKEN  trl new: 3.0e-01\n",
    )
    code, said = ran(monkeypatch, lambda *_: RESULTS, "tlr")
    assert (code, "tlr is none of transformers, trl, axolotl" in said) == (2, True)


def test_a_package_that_cannot_be_installed_and_a_run_without_checks_are_broken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: Any) -> Path:
        stderr = "WARNING: slow\nERROR: No matching distribution found for trl==1.16.0\n"
        raise subprocess.CalledProcessError(1, "pip", stderr=stderr)

    with monkeypatch.context() as patched:
        patched.setattr(trainers, "make_environment", refused)
        done = CliRunner().invoke(trainers.main, ["trl"])
    assert done.exit_code == 1
    assert "could not be installed: ERROR: No matching distribution found" in done.output
    monkeypatch.setattr(trainers, "TESTS", "this_is_no_module")
    (result,) = trainers.run_checks(Path(sys.executable), "trl")
    assert result["holds"] is False
    assert "this_is_no_module" in result["measured"]


def test_what_was_proven_is_recorded_and_what_broke_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, path in {"RECORD": tmp_path / "record", "PAGE": tmp_path / "page"}.items():
        path.write_text(getattr(trainers, name).read_text())
        monkeypatch.setattr(trainers, name, path)

    def results(_: Path, package: str) -> list[dict[str, Any]]:
        return [RESULTS[0] | {"version": "9.9.9", "holds": package != "axolotl"}]

    before = {row["package"]: row["versions"] for row in trainers.rows()}
    assert ran(monkeypatch, results, "trl", "axolotl", "--newest", "--record")[0] == 1
    versions = {row["package"]: row["versions"] for row in trainers.rows()}
    assert versions == before | {"trl": ["9.9.9"]}
    assert "\n".join(trainers.table(trainers.rows())) in (tmp_path / "page").read_text()
