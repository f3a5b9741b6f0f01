"""Short runs of what `python -m tests.faults.fuzz` does for long."""

import shutil
from pathlib import Path

import pytest

from packprep.inspect.verify import verify
from tests.helpers.examples import share_of_examples

from .corpora import check_corpora
from .fuzz import read_everything
from .guided.outputs import sound_outputs
from .mixes import check_mixes


@pytest.mark.parametrize("other", ["", "folder", "nowhere", "manifest.json", "/etc/hostname"])
def test_readers_of_outputs_of_which_a_file_is_gone_or_something_else_read_or_refuse(
    tmp_path: Path, other: str
) -> None:
    """A file is gone, or a folder or a link to this, in its place."""
    for name in ("plain", "split", "index"):
        whole = sound_outputs() / name
        for number, path in enumerate(sorted(whole.rglob("*.*"))):
            copy = Path(shutil.copytree(whole, tmp_path / f"{name}-{number}"))
            damaged = copy / path.relative_to(whole)
            damaged.unlink()
            if other == "folder":
                damaged.mkdir()
            elif other:
                damaged.symlink_to(other)
            read_everything(copy)
            assert not verify(copy).sound


def test_every_token_of_random_corpora_is_on_disk_or_in_the_ledger() -> None:
    tally = check_corpora(share_of_examples(8), 7)
    assert tally.outcomes["built"] > tally.cases / 3


@pytest.mark.long
def test_verify_is_silent_on_random_mixes_that_repeat_documents() -> None:
    tally = check_mixes(share_of_examples(8), 7)
    assert tally.cases == tally.outcomes.total() / 3
