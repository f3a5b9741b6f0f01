"""Calls that need torch say how to install it if it is missing."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from packprep import loaders
from packprep.loaders import PackedLoader, PackedShards
from tests.helpers.tiny_shards import write_output

from .test_shards import row_of

SENTENCE = "batches of tensors need torch, which is not installed; pip install packprep[torch]"
ARGUMENTS: dict[str, dict[str, Any]] = {
    "to_hf_4d": {"config": None},
    "to_torchtitan": {"version": "0.3"},
}
# These need another library first, or no library.
OTHERS = {"to_data_module", "to_iterable_dataset", "to_node", "to_trl_row"}


def calls(loader: PackedLoader) -> dict[str, Callable[[], Any]]:
    batch = loader[0]
    names = [name for name in loaders.__all__ if name.startswith("to_") and name not in OTHERS]
    adapters: dict[str, Callable[[], Any]] = {
        name: partial(getattr(loaders, name), batch, **ARGUMENTS.get(name, {})) for name in names
    }
    return adapters | {
        "seen_until": lambda: loaders.seen_until(batch),
        "tree_mask": lambda: loaders.tree_mask(batch),
        "batch.torch": batch.torch,
        "batch.to": lambda: batch.to("cpu"),
        "batch.pin_memory": batch.pin_memory,
        "dataloader": loader.dataloader,
        "pin_memory": lambda: PackedLoader(loader.shards, 1, pin_memory=True)[0],
    }


def test_whatever_needs_torch_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_output(tmp_path / "out", {"train": [[row_of(0, 3, 2)]]})
    loader = PackedLoader(PackedShards(tmp_path / "out"), 1)
    monkeypatch.setitem(sys.modules, "torch", None)
    for name, call in calls(loader).items():
        try:
            call()
        except ModuleNotFoundError as error:
            assert str(error) == SENTENCE, name
        else:
            pytest.fail(f"{name} raised nothing")
