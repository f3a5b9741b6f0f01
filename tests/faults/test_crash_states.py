"""Power cuts: a hundred states of recorded commands, that the models allow."""

import pytest

from . import harness
from .crash_states import MODELS

# Shards, manifests, token files that an index output needs, files of an export, names in an output,
# and the name of the output.
FORGOTTEN = "*.arrow.*.tmp */manifest.json.*.tmp */unit-*.arrow *.npy out.incomplete ."


@pytest.mark.long
@pytest.mark.skipif(not harness.may_compile(), reason="the library that records calls needs cc")
def test_every_state_has_a_whole_output_or_none_and_missing_syncs_show() -> None:
    """Of a hundred states, and of a hundred for each kind of syncs that is taken out.

    In each the same command ends with the same bytes.
    """
    words = ["--crash-states", "210", "--seed", "5"]
    words += [word for pattern in FORGOTTEN.split() for word in ("--forget", pattern)]
    done = harness.under_shim(harness.SOAK, words, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    [line] = [line for line in lines if line.startswith("210 crash states, ")]
    assert line.startswith("210 crash states, 0 bad: ")
    assert all(model in line for model in MODELS)
    bad = [line.rsplit(" ", 2)[1] for line in lines if line.startswith("without the syncs of ")]
    assert len(bad) == len(FORGOTTEN.split())
    assert "0" not in bad
