"""Power cuts: the states that each model allows, and a hundred of recorded commands."""

import itertools
from pathlib import Path

import pytest

from . import harness
from .crash_states import BLOCK, MODELS, crash_states
from .recording import ROOT, Entry, Naming, Node, Recording, Step, Sync, Tree, Write, apply, tree

ROOM = Path(__file__).parents[2]
OLD, NEW = b"old" * 2000, b"new" * 4000  # two blocks and three
# Shards, manifests, token files that an index output needs, files of an export, names in an output,
# and the name of the output.
FORGOTTEN = "*.arrow.*.tmp */manifest.json.*.tmp */unit-*.arrow *.npy out.incomplete ."


def recording(*steps: Step) -> Recording:
    """A recording that starts with a file `a`, node 1; nodes 2 and 3 are new files."""
    started = {ROOT: Node(entries={"a": 1}), 1: Node(bytearray(OLD)), 2: Node(), 3: Node()}
    nodes = {number: node.copy() for number, node in started.items()}
    for step in steps:
        apply(nodes, step)
    return Recording(started, steps, tree(started), tree(nodes))


def states(model: str, *steps: Step, over: bool = False) -> list[Tree]:
    """Different states of a model. over: only those after all steps."""
    all_of_them = itertools.islice(crash_states(recording(*steps), seed=1), 4000)
    found = [state for state in all_of_them if state.model == model and state.over >= over]
    return list({state.digest: state.files for state in found}.values())


def create(name: str, node: int) -> Naming:
    return Naming((Entry(ROOT, name, None, node),))


def rename(one: str, node: int, other: str, replaced: int | None = None) -> Naming:
    return Naming((Entry(ROOT, one, node, None), Entry(ROOT, other, replaced, node)))


CUTS = [name for name, model in MODELS.items() if model.loses]
CREATE, WRITE, RENAME = create("b", 2), Write(2, 0, NEW), rename("b", 2, "a", 1)
REPLACE = (CREATE, WRITE, RENAME)


def contents(model: str, name: str, *steps: Step) -> set[bytes | None]:
    """Content of a file after a power cut behind all steps; None if it is not there."""
    return {files.get(name) for files in states(model, *steps, over=True)}


@pytest.mark.parametrize("model", CUTS)
def test_what_was_synced_is_there_in_every_model(model: str) -> None:
    synced = (CREATE, WRITE, Sync(2, "b"), RENAME)
    assert contents(model, "a", *synced) == {OLD, NEW}
    assert states(model, *synced, Sync(ROOT, "."), over=True) == [{"a": NEW}]


def test_a_kill_loses_nothing() -> None:
    assert contents("killed", "a", *REPLACE) == {NEW}
    after_a_step = ({"a": OLD, "b": b""}, {"a": OLD, "b": NEW}, {"a": NEW})
    assert all(files in after_a_step for files in states("killed", *REPLACE))


def test_only_ext4_in_ordered_mode_writes_a_file_before_it_replaces_another() -> None:
    assert contents("ordered", "a", *REPLACE) == {OLD, NEW}
    for model in ("writeback", "xfs", "unordered"):
        assert {b"", bytes(len(NEW)), NEW[:BLOCK], NEW} <= contents(model, "a", *REPLACE)


def test_a_size_never_runs_ahead_of_the_bytes_in_ordered_mode_alone() -> None:
    steps = (CREATE, WRITE)
    prefixes = {None, b"", NEW[:BLOCK], NEW[: 2 * BLOCK], NEW}
    assert contents("ordered", "b", *steps) == prefixes
    torn = NEW[:BLOCK] + bytes(BLOCK) + NEW[2 * BLOCK :]
    assert torn in contents("xfs", "b", *steps)


@pytest.mark.long
@pytest.mark.skipif(not harness.may_compile(), reason="the library that records calls needs cc")
def test_every_state_has_a_whole_output_or_none_and_missing_syncs_show() -> None:
    """Of a hundred states, and of a hundred for each kind of syncs that is taken out.

    In each the same command ends with the same bytes.
    """
    words = ["--crash-states", "100", "--seed", "5"]
    words += [word for pattern in FORGOTTEN.split() for word in ("--forget", pattern)]
    done = harness.under_shim("tests.faults.soak", words, cwd=ROOM, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    [line] = [line for line in lines if line.startswith("100 crash states, ")]
    assert line.startswith("100 crash states, 0 bad: ")
    assert all(model in line for model in MODELS)
    bad = [line.rsplit(" ", 2)[1] for line in lines if line.startswith("without the syncs of ")]
    assert len(bad) == len(FORGOTTEN.split())
    assert "0" not in bad
