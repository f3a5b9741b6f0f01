"""The data module in Lightning's own trainer, on the CPU: epochs, validation, checkpoints."""

import logging
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from packprep.loaders import PackedBatch, PackedLoader, PackedShards, to_data_module
from tests.helpers.tiny_shards import numbered_shards

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # Lightning's use of torch 2.13
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
]


class Recorder(pl.LightningModule):  # type: ignore[misc]
    """A model with one weight that notes the first token of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: list[int] = []

    def training_step(self, batch: PackedBatch) -> torch.Tensor:
        self.seen.append(int(batch.tokens[0]))
        return self.weight.sum() * float(batch.tokens[0])

    def validation_step(self, batch: PackedBatch) -> None:
        self.seen.append(int(batch.tokens[0]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.fixture
def shards(tmp_path: Path) -> PackedShards:
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    return numbered_shards(tmp_path / "out", 13)


def trainer_in(folder: Path, **options: Any) -> pl.Trainer:
    every: dict[str, Any] = {"every_n_train_steps": 1, "save_top_k": -1}
    keeper = ModelCheckpoint(folder / "kept", filename="{step}", **every)
    options |= {"accelerator": "cpu", "devices": 1, "logger": False, "default_root_dir": folder}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False}
    return pl.Trainer(callbacks=[keeper], **options, **quiet)


def fit(shards: PackedShards, folder: Path, resume: Any = None, **options: Any) -> list[int]:
    """First token of each batch of a run, whose last checkpoint is `last.ckpt` in the folder."""
    model, trainer = Recorder(), trainer_in(folder, **options)
    trainer.fit(model, datamodule=to_data_module(shards, 2, seed=4), ckpt_path=resume)
    trainer.save_checkpoint(folder / "last.ckpt")
    return model.seen


def firsts(loader: Any) -> list[int]:
    return [int(batch.tokens[0]) for batch in loader]


def epochs(shards: PackedShards, count: int) -> list[int]:
    loaders = [PackedLoader(shards, 2, seed=4, epoch=epoch) for epoch in range(count)]
    return [token for loader in loaders for token in firsts(loader)]


LONG = pytest.mark.long


@pytest.mark.parametrize("stopped", [5, *(pytest.param(n, marks=LONG) for n in (1, 6, 7, 12))])
@pytest.mark.parametrize("name", ["kept/step={}.ckpt", pytest.param("last.ckpt", marks=LONG)])
def test_a_run_resumes_at_the_batch_after_its_checkpoint(
    shards: PackedShards, tmp_path: Path, stopped: int, name: str
) -> None:
    """Lightning writes the first file within an epoch; the second after `fit` counts it as over."""
    first = fit(shards, tmp_path, max_steps=stopped)
    second = fit(shards, tmp_path, resume=tmp_path / name.format(stopped), max_steps=18)
    assert first + second == epochs(shards, 3)
    assert len(first) == stopped


@pytest.mark.long
def test_short_epochs_and_a_second_fit_read_on(shards: PackedShards, tmp_path: Path) -> None:
    model, module = Recorder(), to_data_module(shards, 2, seed=4)
    trainer = trainer_in(tmp_path, max_epochs=2, limit_train_batches=4)
    trainer.fit(model, datamodule=module)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, datamodule=module)
    assert model.seen == epochs(shards, 2)


def test_validation_reads_its_split_in_stored_order_and_ranks_share_the_packs(
    shards: PackedShards, tmp_path: Path
) -> None:
    model, module = Recorder(), to_data_module(shards, 2, seed=4, validation=shards)
    trainer_in(tmp_path).validate(model, datamodule=module, verbose=False)
    assert model.seen == firsts(PackedLoader(shards, 2, shuffle=False))

    class OfRankOne:
        global_rank, world_size = 1, 2

    module.trainer = OfRankOne()
    stream = module.train_dataloader()
    loader = PackedLoader(shards, 2, seed=4, rank=1, world_size=2)
    assert firsts(islice(stream, len(stream))) == firsts(loader)
