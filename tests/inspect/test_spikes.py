"""Planted documents of a simulated training are named by `packprep spike`, and none else."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.inspect import spikes as spikes_module
from packprep.loaders import LossLog, PackedLoader, PackedShards
from packprep.schemas.errors import FormatError
from packprep.schemas.loss_log import read_losses
from tests.helpers.command import run
from tests.helpers.corpus import write_jsonl
from tests.helpers.errors import refused
from tests.helpers.examples import share_of_examples
from tests.helpers.zoo import Zoo

DOCUMENTS, FILES = 100_000, 4
HARD = np.array([1.0, 0.75, 1.4, 1.1])  # loss of each file, as a factor
SPREAD = np.array([0.1, 0.2, 0.15, 0.12])  # of the documents of a file, in log loss


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100,000 documents of 1 to 200 tokens in four files."""
    folder, draw = tmp_path_factory.mktemp("spikes"), np.random.default_rng(0)
    sizes = np.exp(draw.normal(2.5, 1, DOCUMENTS)).astype(int).clip(1, 200)
    sources = []
    for number, of_file in enumerate(np.array_split(sizes, FILES)):
        rows = ({"ids": [row % 50] * size} for row, size in enumerate(of_file.tolist()))
        sources.append(str(write_jsonl(folder / f"{number}.jsonl", rows)))
    options: dict[str, Any] = {"input_ids_column": "ids", "vocab_size": 50, "max_length": 512}
    build(BuildConfig(sources=tuple(sources), output=str(folder / "out"), **options, num_proc=1))
    return folder / "out"


def simulated(batch: Any, step: int, draw: np.random.Generator, broken: Any) -> Any:
    """Losses of the documents of a batch: a falling curve, and noise with tails.

    A loss is a mean over the tokens, times the difficulty of the file and of the document, which
    is lognormal. Each of the few tokens here stands for 64.
    """
    file = batch.document_ids * FILES // DOCUMENTS
    tokens = 64.0 * np.diff(batch.cu_seqlens)
    curve = 1.6 + 3 * np.exp(-step / 10) + 0.7 * (step / 250 + 0.01) ** -0.15
    loss = curve * HARD[file] * np.exp(SPREAD[file] * draw.normal(size=len(file)))
    loss *= draw.gamma(tokens, 1 / tokens)
    planted = np.isin(batch.document_ids, broken)
    return np.where(planted, 18 * draw.gamma(4 * tokens, 0.25 / tokens), loss).astype(np.float32)


def logged(output: Path, log: Path, broken: Any, epochs: int = 1, seed: int = 1) -> None:
    """Log a training on two ranks."""
    draw = np.random.default_rng(seed)
    for rank in range(2):
        loader = PackedLoader(output, 8, rank=rank, world_size=2, remainder="fill")
        with LossLog(log, loader) as losses:
            for epoch in range(epochs):
                loader.set_epoch(epoch)
                for step, batch in enumerate(loader, epoch * len(loader)):
                    losses.add(step, batch, simulated(batch, step, draw, broken))


@pytest.mark.long
def test_ten_broken_documents_of_100_000_are_named_and_none_else(
    output: Path, tmp_path: Path
) -> None:
    broken = np.sort(np.random.default_rng(2).choice(DOCUMENTS, 10, replace=False)).tolist()
    logged(output, tmp_path / "log", broken, epochs=2, seed=2)
    spikes = json.loads(run("spike", tmp_path / "log", output, "--json").out)
    half = len(spikes) // 2
    first, again = spikes[:half], spikes[half:]  # of both epochs
    for of_epoch in (first, again):
        assert sorted(spike["document"] for spike in of_epoch) == broken
    trained = {spike["document"]: [spike["step"], spike["loss"], True] for spike in first}
    assert [spike["before"] for spike in first] == [None] * 10
    assert {s["document"]: [*s["before"].values()] for s in again} == trained
    each = DOCUMENTS // FILES
    assert [(int(s["source"][-7]), s["row"]) for s in spikes] == [
        divmod(s["document"], each) for s in spikes
    ]
    bytes_of_log = sum(file.stat().st_size for file in (tmp_path / "log").iterdir())
    assert bytes_of_log < 3 * 2 * DOCUMENTS


@pytest.mark.long
def test_of_sound_documents_none_is_named(output: Path, tmp_path: Path) -> None:
    logged(output, tmp_path / "log", [])
    result = run("spike", tmp_path / "log", output)
    assert (result.code, result.out) == (0, "no loss is out of line\n")


def test_a_loss_that_is_no_number_is_named_at_its_first_step(zoo: Zoo, tmp_path: Path) -> None:
    loader, step, broken = PackedLoader(zoo["text"], 4), 0, -1
    first = 3 * len(loader) + 2
    with LossLog(tmp_path, loader) as log:
        for epoch in range(12):
            loader.set_epoch(epoch)
            for batch in loader:
                losses = np.random.default_rng(step).normal(2, 0.1, batch.num_segments)
                if step >= first:  # from then on the weights are broken
                    losses[:] = np.nan
                if step == first:
                    losses[1:], broken = 2, int(batch.document_ids[0])
                log.add(step, batch, losses)
                step += 1
    command = ("spike", tmp_path, zoo["text"])
    result = run(*command, "--rows", tmp_path / "rows.txt", "--head", "2")
    assert (tmp_path / "rows.txt").read_text() == f"{zoo.source('text')}:{broken}\n"
    assert f"step {first}: {zoo.source('text')} row {broken}\n   0  " in result.out
    (spike,) = json.loads(run(*command, "--json").out)
    assert (spike["loss"], spike["score"], spike["before"]["spiked"]) == (None, None, False)
    assert run(*command, "--steps", f"0:{first - 1}").out.startswith("no loss")


def small_log(output: Path, folder: Path, **options: Any) -> PackedLoader:
    """A log of a few steps whose losses are the step."""
    loader = PackedLoader(output, 2, **options)
    with LossLog(folder, loader) as log:
        for step, batch in enumerate(loader):
            log.add(step, batch, np.full(batch.num_segments, step, np.float32))
    return loader


@settings(max_examples=share_of_examples(5))
@given(cut=st.floats(0, 1))
def test_a_log_that_was_cut_anywhere_has_all_records_before_and_is_continued(
    cut: float, zoo: Zoo, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    loader = small_log(zoo["text"], folder, max_segments=60)
    file = folder / "rank-00000.losses"
    content, whole = file.read_bytes(), read_losses([file])
    file.write_bytes(content[: int(cut * len(content))])
    some = read_losses([file])
    steps = int(some.step.max(initial=-1)) + 1
    assert some.pack.tolist() == whole.pack[whole.step < steps].tolist()
    with LossLog(folder, loader) as log:  # begins a few steps earlier, as from a checkpoint
        for step in range(max(steps - 2, 0), len(loader)):
            batch = loader[step].torch()
            log.add(step, batch, batch.tokens.new_full((batch.num_segments,), step).float())
    again = read_losses([file])
    assert all(
        np.array_equal(*pair)
        for pair in zip(vars(again).values(), vars(whole).values(), strict=True)
    )


def test_a_log_names_the_segments_that_the_loader_gave(zoo: Zoo, tmp_path: Path) -> None:
    for member, options in (("pairs", {"sides": "chosen"}), ("mix", {"shuffle": False})):
        loader = small_log(zoo[member], tmp_path / member, **options)
        manifest, log = loader.shards.manifest, tmp_path / member
        segments = spikes_module.segments_of(zoo[member], manifest, "train")
        _, at = spikes_module.places(read_losses([*log.iterdir()]), segments, log)
        batches = [loader[step] for step in range(len(loader))]
        ids = np.concatenate([batch.document_ids for batch in batches])
        assert segments.document[at].tolist() == ids[ids >= 0].tolist()
        lengths = np.concatenate([np.diff(batch.cu_seqlens) for batch in batches])
        assert segments.length[at].tolist() == lengths[ids >= 0].tolist()


def test_what_is_no_log_of_this_output_is_refused(zoo: Zoo, tmp_path: Path) -> None:
    loader = small_log(zoo["text"], tmp_path)
    file = tmp_path / "rank-00000.losses"
    assert run("spike", tmp_path, zoo["text"]).code == 2  # too few losses
    assert run("spike", tmp_path, zoo["chats"]).code == 2
    with refused(ValueError, "log of other packs", zoo["chats"].name):
        LossLog(tmp_path, PackedLoader(zoo["chats"], 2))
    with refused(ValueError, "trees"):
        LossLog(tmp_path, PackedLoader(zoo["trees"], 2, trees=True))
    with LossLog(tmp_path, loader) as log:
        with refused(ValueError, 1, "losses were given for"):
            log.add(0, loader[0], np.zeros(1))
        with refused(ValueError, "log batches of a PackedLoader"):
            log.add(0, replace(loader[0], pack_numbers=None), np.zeros(1))
    content = bytearray(file.read_bytes())
    content[60] ^= 1
    file.write_bytes(content)
    with refused(FormatError, "damaged at byte", str(file)):
        read_losses([file])
    file.write_bytes(b"step,loss")
    with refused(FormatError, "is not a log of losses"):
        read_losses([file])


@pytest.mark.parametrize("labels", ["hf", "shifted"])
def test_listed_rows_have_no_loss_and_batches_stay_the_same(
    labels: Any, zoo: Zoo, tmp_path: Path
) -> None:
    output, listed = zoo["split"], [3, 40, 41, 130]
    first, second = zoo.sources("split")
    rows = tmp_path / "rows.txt"
    rows.write_text(f"{first}:3\n{first.name}:40\n\n{first}:41\n{second}:10\n", "utf-8")
    shards, made = (
        PackedShards(output, split="train"),
        {"labels": labels, "loss_weights": "segment"},
    )
    whole = PackedLoader(shards, 3, **made)
    for step, batch in enumerate(PackedLoader(shards, 3, **made, skip_rows=rows)):
        left_out = np.isin(batch.document_ids, listed).repeat(np.diff(batch.cu_seqlens))
        expected = np.where(left_out, -100, whole[step].labels)
        assert np.array_equal(batch.labels, expected)
        assert np.array_equal(batch.tokens, whole[step].tokens)
        assert not batch.loss_weights[left_out].any()
        assert np.array_equal(batch.loss_weights[~left_out], whole[step].loss_weights[~left_out])
    rows.write_text(f"{first}:3\n{first}:120\n", "utf-8")
    with refused(ValueError, "rows.txt line 2", 120, "rows, numbered from 0"):
        PackedLoader(shards, 3, skip_rows=rows)
    with refused(ValueError, "skip_rows needs labels"):
        rows.write_text(f"{first}:3\n", "utf-8")
        PackedLoader(shards, 3, skip_rows=rows, labels="none")
