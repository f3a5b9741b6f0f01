"""The loader in training.

torch's data loaders, two processes, kill and resume.
"""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from packprep.loaders import PackedLoader, PackedShards
from tests.helpers import warm
from tests.helpers.tiny_shards import write_output
from tests.helpers.torch_models import VOCABULARY, documents, pack_of, skip_without

from .test_order import packs_in, packs_of

skip_without("torch", "transformers")

from torch.utils.data import DataLoader  # noqa: E402

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "scripts" / "examples" / "train_tiny.py")
SIZES = ["--width", "32", "--layers", "1", "--heads", "4", "--kv-heads", "2", "--lr", "0.01"]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 packs of one to three random documents in three shards."""
    directory = tmp_path_factory.mktemp("train") / "out"
    rows = [pack_of(3 * n, documents([5 + n, 9, 30 - n][: 1 + n % 3], seed=n)) for n in range(24)]
    splits = {"train": [rows[:10], rows[10:14], rows[14:]]}
    write_output(directory, splits, max_length=64, vocab_size=VOCABULARY)
    return directory


def in_workers(workers: int) -> dict[str, Any]:
    """Options of a DataLoader.

    Workers get a pickled loader, as with "spawn", but torch is imported once for all of them.
    """
    multiprocessing.set_forkserver_preload(["torch.utils.data", "packprep.loaders"])
    return {"num_workers": workers} | ({"multiprocessing_context": "forkserver"} if workers else {})


WORKERS = pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])


@pytest.mark.filterwarnings("ignore")
@WORKERS
def test_a_stateful_dataloader_resumes_where_it_was(shards: Path, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def batches() -> Any:
        loader = PackedLoader(PackedShards(shards), 3)
        return stateful.StatefulDataLoader(loader, batch_size=None, **in_workers(workers))

    expected = packs_in(PackedLoader(PackedShards(shards), 3))
    first, again = batches(), batches()
    iterator = iter(first)
    before = [packs_of(next(iterator)) for _ in range(3)]
    again.load_state_dict(first.state_dict())
    assert before + packs_in(again) == expected
    assert packs_in(again) == expected


@WORKERS
def test_a_dataloader_of_the_loader_resumes_at_its_state_and_counts(
    shards: Path, workers: int
) -> None:
    first = PackedLoader(PackedShards(shards), 3, seed=5)
    documents = [*chain(*packs_in(first))]
    iterator = iter(first.dataloader(**in_workers(workers)))
    before = list[int]()
    for step in range(3):
        assert first.state_dict()["packs"] == 3 * step
        before += packs_of(next(iterator))
    resumed = PackedLoader(PackedShards(shards), 5)  # batches of another size
    resumed.load_state_dict(first.state_dict())
    batches = resumed.dataloader(**in_workers(workers))
    assert resumed.state_dict() == first.state_dict()
    assert [*before, *chain(*packs_in(batches))] == documents
    assert resumed.state_dict()["packs"] == 24
    assert packs_in(batches) == packs_in(PackedLoader(PackedShards(shards), 5, seed=5))


# One worker: a second one might still be starting when the first one's refusal ends the iteration.
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_dataloader_made_by_hand_is_refused_where_it_would_ignore_a_loaded_state(
    shards: Path, workers: int
) -> None:
    loader: Any = PackedLoader(PackedShards(shards), 3)
    iterator = iter(loader)
    next(iterator)
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="step 0 was read and the loaded state is at pack 3"):
        next(iter(DataLoader(loader, batch_size=None, **in_workers(workers))))
    assert packs_of(loader[1]) == packs_of(next(iterator))


def train_tiny(*arguments: str, **variables: str) -> list[str]:
    """The command for scripts/examples/train_tiny.py on one thread, with these variables."""
    return warm.command("python", EXAMPLE, *arguments, *SIZES, **variables)


def losses_in(output: str) -> dict[int, float]:
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return {line["step"]: line["loss"] for line in lines}


@pytest.fixture(scope="module")
def uninterrupted(shards: Path) -> dict[int, float]:
    """Losses of ten steps of four packs, which is more than an epoch, in one process."""
    command = train_tiny(str(shards), "--steps", "10", "--packs", "4")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "tokens/s over 8 steps, loader" in done.stdout
    losses = losses_in(done.stdout)
    assert len(losses) == 10
    assert losses[10] < losses[1]
    return losses


@pytest.mark.long
def test_two_processes_train_to_the_losses_of_one(
    shards: Path, uninterrupted: dict[int, float]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    commands = [
        train_tiny(str(shards), "--steps", "10", "--packs", "2", RANK=str(rank), **place)
        for rank in range(2)
    ]
    ranks = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in commands]
    output = [process.communicate(timeout=600)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert losses_in(output[0]) == pytest.approx(uninterrupted, abs=1e-5)


@pytest.mark.long
def test_killed_and_resumed_gives_the_losses_of_an_uninterrupted_run(
    shards: Path, tmp_path: Path, uninterrupted: dict[int, float]
) -> None:
    arguments = [str(shards), "--steps", "10", "--packs", "4"]
    arguments += ["--checkpoint", str(tmp_path / "tiny.pt")]
    own = [sys.executable, EXAMPLE, *arguments, *SIZES]  # a fork of the server would live on
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(own, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert any(json.loads(line)["step"] == 4 for line in process.stdout)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    done = subprocess.run(train_tiny(*arguments), capture_output=True, text=True, check=True)
    resumed = losses_in(done.stdout)
    assert min(resumed) in (4, 5)  # killed before or after the checkpoint of step 4
    assert resumed == {step: loss for step, loss in uninterrupted.items() if step >= min(resumed)}
