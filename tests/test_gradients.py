"""Packs train like their documents one at a time: gradients in float64, and kills of two ranks."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from torch.utils.checkpoint import checkpoint

from packprep import BuildConfig, build
from packprep.loaders import (
    BatchShape,
    PackedBatch,
    PackedLoader,
    context_slice,
    log_probs_and_entropy,
    loss_weights,
    pair_log_probs,
    selective_log_probs,
    varlen_attention,
)
from packprep.loaders.context_parallel import context_indices

ROOT = Path(__file__).parents[1]
TRAINER = str(ROOT / "scripts" / "examples" / "train_tiny.py")
VOCABULARY, WIDTH, HEADS = 50, 8, 2
TINY = ["--width", "32", "--layers", "1", "--heads", "4", "--kv-heads", "2", "--lr", "0.01"]
RUN = (
    "import runpy, sys, packprep.loaders as own; sys.modules['packprep.loaders'] = own; "
    "own.PackedShards.manifest = property(lambda shards: shards); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""Runs a program, which reads the size of the vocabulary of `shards.manifest`."""


class Model(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """An embedding with positions, a layer of attention, and an output, all in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
        self.places = torch.nn.Embedding(64, WIDTH, dtype=torch.float64)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, dtype=torch.float64)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.float64)

    def forward(self, batch: PackedBatch) -> Any:
        x = self.tokens(batch.tokens) + self.places(batch.position_ids)
        q, k, v = self.qkv(x).reshape(len(x), 3, HEADS, -1).unbind(1)
        seen = varlen_attention(q, k, v, batch.cu_seqlens, batch.max_seqlen, backend="reference")
        return x + seen.reshape(len(x), WIDTH)

    def log_probs(self, batch: PackedBatch) -> Any:
        """Log-probability of each next token, [T]."""
        return selective_log_probs(self(batch), self.head.weight, batch.labels_as("shifted"), 16)


def gradients(model: Model, loss: Any) -> dict[str, Any]:
    model.zero_grad()
    loss.backward()
    named: Any = model.named_parameters()
    return {name: each.grad.clone() for name, each in named}


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-9)


def documents() -> list[dict[str, Any]]:
    """Documents of 2 to 24 tokens, whose beginning is not trained."""
    draw = np.random.default_rng(3)
    rows = []
    for number, length in enumerate(draw.integers(2, 25, 30).tolist()):
        ids = draw.integers(0, VOCABULARY, length).tolist()
        asked = number % 3 if length > 4 else 0
        rows.append({"ids": ids, "labels": [-100] * asked + ids[asked:]})
    return rows


def built(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options |= {"sources": [str(source)], "tokenizer": VOCABULARY, "max_length": 32}
    build(BuildConfig(**options, output=str(folder / "out")))
    return folder / "out"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("packed"), documents(), ids="ids,labels:labels")


def alone(model: Model, row: dict[str, Any]) -> Any:
    """Losses of the trained tokens of one document, by a forward of its own."""
    tokens, labels = torch.tensor(row["ids"]), torch.tensor(row["labels"])
    length = len(tokens)
    batch = PackedBatch(
        tokens=tokens,
        position_ids=torch.arange(length),
        cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
        max_seqlen=length,
    )
    logits = model(batch) @ model.head.weight.T
    each = torch.nn.functional.cross_entropy(logits[:-1], labels[1:], reduction="none")
    return each[labels[1:] != -100]


@pytest.mark.parametrize("labels", ["hf", "shifted"])
@pytest.mark.parametrize("mode", ["token", "segment", "document"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_are_those_of_documents_one_at_a_time(
    packed: Path, mode: Any, labels: Any, ranks: int
) -> None:
    """The sum over ranks, with packs that fill the last batch."""
    model = Model()
    shape = BatchShape(packs_per_batch=2, pad_to=72)
    options: dict[str, Any] = {"shape": shape, "remainder": "fill", "labels": labels}
    loss: Any = 0
    for rank in range(ranks):
        options |= {"rank": rank, "world_size": ranks}
        for each in PackedLoader(packed, loss_weights=mode, **options):
            batch = each.torch()
            mask, ids = batch.labels != -100, batch.document_ids
            weights = loss_weights(batch.cu_seqlens, mask, mode, ids, dtype=torch.float64)
            torch.testing.assert_close(weights.float(), batch.loss_weights)
            shift = -1 if labels == "hf" else 0
            loss -= (weights.roll(shift) * model.log_probs(batch)).sum()
    found = gradients(model, loss)
    losses = [alone(model, row) for row in documents()]
    assert all(map(len, losses))
    expected: Any = sum(each.sum() if mode == "token" else each.mean() for each in losses)
    same(found, gradients(model, expected))


def test_fewer_packs_in_a_forward_and_checkpoints_are_the_same_gradient(packed: Path) -> None:
    """To save memory: gradients of parts add up to those of the batch."""
    model: Any = Model()
    (each,) = PackedLoader(packed, 8, loss_weights="document", remainder="drop")
    batch = each.torch()

    def loss(part: PackedBatch) -> Any:
        return -(part.loss_weights.roll(-1) * model.log_probs(part)).sum()

    expected, parts = gradients(model, loss(batch)), batch.micro_batches(3)
    assert [len(part.pack_numbers) for part in parts] == [3, 3, 2]
    losses = [checkpoint(loss, part, use_reentrant=False) for part in parts]
    same(gradients(model, sum(losses)), expected)


def test_gradients_of_pairs_are_those_of_pairs_one_at_a_time(tmp_path: Path) -> None:
    """By DPO without a reference model; the sides of a pair are in one pack."""
    ids = [row["ids"][:14] for row in documents()]
    pairs = [{"a": a, "b": b} for a, b in zip(ids[::2], ids[1::2], strict=True)]
    out = built(tmp_path, pairs, pairs="a,b", ids="auto")
    model, loss = Model(), torch.zeros((), dtype=torch.float64)
    for each in PackedLoader(out, 2, sides="both", remainder="fill"):
        batch = each.torch()
        sums = pair_log_probs(model(batch) @ model.head.weight.T, batch)
        loss -= torch.nn.functional.logsigmoid(sums.chosen - sums.rejected).sum()
    found = gradients(model, loss)
    expected = torch.zeros((), dtype=torch.float64)
    for pair in pairs:
        a, b = (-alone(model, {"ids": ids, "labels": ids}).sum() for ids in pair.values())
        expected -= torch.nn.functional.logsigmoid(a - b)
    same(found, gradients(model, expected))


def of_context_rank(path: Path, layout: Any) -> None:
    """In one of two processes: gradients of slices add up to those of whole batches."""
    torch.distributed.init_process_group("gloo")
    rank, model = torch.distributed.get_rank(), Model()
    shape = BatchShape(packs_per_batch=2, cp_size=2, cp_layout=layout)
    for each in PackedLoader(path, shape=shape, labels="shifted", rank=0, world_size=1):
        batch = each.torch()
        expected = gradients(model, -model.log_probs(batch).sum())
        index = torch.from_numpy(context_indices(each.cu_seqlens, rank, 2, layout))
        own = context_slice(batch, rank, 2, layout)
        hidden = model(batch)[index]  # as attention over the slices of all ranks gives it
        values, _ = log_probs_and_entropy(hidden, model.head.weight, own, cp_layout=layout)
        found = gradients(model, -values.sum())
        for gradient in found.values():
            torch.distributed.all_reduce(gradient)
        same(found, expected)
    torch.distributed.barrier()
    os._exit(0)  # torch's own end of a process group aborts at times


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
def test_gradients_of_context_parallel_ranks_add_up_to_those_of_whole_batches(
    tmp_path: Path, layout: str
) -> None:
    out = built(tmp_path, documents(), ids="ids,labels:labels", pad_to_multiple=4)
    running = ranks_of([sys.executable, "-m", __spec__.name, str(out), layout])
    said = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], said


def ranks_of(command: list[str]) -> list["subprocess.Popen[str]"]:
    """The command as two ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(command, cwd=ROOT, env={**os.environ, **place, "RANK": str(rank)}, **pipes)
        for rank in range(2)
    ]


def train(out: Path, packs: int, *more: str) -> list[str]:
    """Command of ten steps of the example trainer."""
    sizes = ("--steps", "10", "--packs", str(packs), *TINY)
    return [sys.executable, "-c", RUN, TRAINER, str(out), *sizes, *more]


def losses_in(said: str) -> dict[int, float]:
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return {line["step"]: line["loss"] for line in lines}


@pytest.mark.long
def test_two_ranks_that_are_killed_in_an_epoch_resume_to_the_losses_of_one(
    packed: Path, tmp_path: Path
) -> None:
    """And go on as one rank, from the same state."""
    whole = subprocess.run(train(packed, 4), cwd=ROOT, capture_output=True, text=True, check=True)
    expected = losses_in(whole.stdout)
    assert len(expected) == 10
    command = train(packed, 2, "--checkpoint", str(tmp_path / "tiny.pt"))
    running = ranks_of(command)
    assert running[0].stdout is not None
    assert any(json.loads(line)["step"] == 4 for line in running[0].stdout if line[0] == "{")
    for process in running:
        process.kill()
        process.communicate()
    shutil.copy(tmp_path / "tiny.pt", tmp_path / "one.pt")
    running = ranks_of(command)
    said = [process.communicate(timeout=300) for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    one = train(packed, 4, "--checkpoint", str(tmp_path / "one.pt"))
    done = subprocess.run(one, cwd=ROOT, capture_output=True, text=True, check=True)
    for found in (losses_in(said[0][0]), losses_in(done.stdout)):
        assert 0 < len(found) < 10
        assert found == pytest.approx({step: expected[step] for step in found}, abs=1e-5)


if __name__ == "__main__":
    of_context_rank(Path(sys.argv[1]), sys.argv[2])
