"""Shards as a data module of Lightning."""

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..batch import PackedBatch
from ..loader import PackedLoader
from ..shards import PackedShards


def to_data_module(
    train: PackedShards,
    packs_per_batch: int | None = None,
    *,
    validation: PackedShards | None = None,
    **options: Any,
) -> Any:
    """A LightningDataModule: a PackedLoader for each split, with the trainer's rank and world size.

    options: those of PackedLoader for both splits, except epoch, rank, world_size, and shuffle,
    which concerns training only. Training reads one stream, epoch after epoch: an epoch of
    Lightning takes `len(loader)` batches of it, or fewer by limit_train_batches, and the next one
    follows on. Lightning saves the position in its checkpoints and resumes there exactly. A batch
    is a PackedBatch; Lightning moves it to the device as tensors. For `lightning` or
    `pytorch_lightning`, whichever is in use.
    """
    base: Any = _lightning().LightningDataModule

    def loader_of(module: Any, shards: PackedShards, **more: Any) -> PackedLoader:
        rank, world_size = module.trainer.global_rank, module.trainer.world_size
        return PackedLoader(
            shards, packs_per_batch, rank=rank, world_size=world_size, **options | more
        )

    class PackedDataModule(base):  # type: ignore[misc]
        stream: _Stream | None = None

        def train_dataloader(self) -> _Stream:
            before, self.stream = self.stream, _Stream(loader_of(self, train))
            if before is not None:  # a second `fit`, or reload_dataloaders_every_n_epochs
                self.stream.load_state_dict(before.state_dict())
            return self.stream

    if validation is not None:
        PackedDataModule.val_dataloader = lambda self: loader_of(self, validation, shuffle=False)
    return PackedDataModule()


class _Stream:
    """The batches of a loader from its position on, without end, and the length of an epoch."""

    def __init__(self, loader: PackedLoader) -> None:
        self._loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[PackedBatch]:
        while True:
            self.load_state_dict(self.state_dict())
            yield from self._loader
            self._loader.set_epoch(self._loader.epoch + 1)


def _lightning() -> Any:
    """The package whose trainer is in use; both may be installed, and know only their classes."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in names:
        if name in sys.modules:
            return sys.modules[name]
    return import_module(next((name for name in names if find_spec(name.split(".")[0])), names[0]))
