"""The adapters' table of docs/train/index.md, and what `scripts/check_trainers` prints.

The contracts themselves need the trainers: `scripts/check_trainers` runs them.
"""

import sys
from pathlib import Path

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
