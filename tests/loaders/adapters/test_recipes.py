"""Each recipe of docs/train/ trains on packs as on the documents alone.

With the installed transformers and TRL.
"""

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from packprep.loaders import check_trl, to_hf, to_trl
from tests.helpers.torch_models import skip_without

skip_without("torch", "transformers", "trl", "accelerate")

from torch.utils.data import SequentialSampler  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

from tests.helpers.recipes import (  # noqa: E402
    LEAK,
    LEAKS,
    RECIPES,
    REFUSED,
    SETTINGS,
    TOLERANCE,
    difference,
    llama,
    write_shards,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries' own making
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recipes") / "shards"
    write_shards(directory)
    return directory


def quick(names: Iterable[str]) -> list[Any]:
    """The first one of each library in the short run."""
    firsts = {name.split()[0]: name for name in reversed([*names])}
    return [pytest.param(n, marks=() if n in firsts.values() else LONG) for n in names]


@pytest.mark.parametrize("name", quick(RECIPES))
def test_the_first_losses_of_a_guarded_recipe_are_those_of_the_documents_alone(
    name: str, shards: Path, tmp_path: Path
) -> None:
    assert difference(*RECIPES[name](shards, tmp_path / "out")) < TOLERANCE


@pytest.mark.parametrize("name", quick(LEAKS))
def test_a_recipe_made_to_leak_has_other_losses(name: str, shards: Path, tmp_path: Path) -> None:
    assert difference(*LEAKS[name](shards, tmp_path / "out")) > LEAK


@pytest.mark.parametrize("name", quick(REFUSED))
def test_the_guard_refuses_a_recipe_made_to_leak(name: str, shards: Path, tmp_path: Path) -> None:
    REFUSED[name](shards, tmp_path / "out")


def rows_of(lengths: list[list[int]]) -> Any:
    """A dataset of rows that hold documents of these lengths, with the names of hf."""
    from datasets import Dataset

    ids = [[5] * sum(row) for row in lengths]
    places = [[place for length in row for place in range(length)] for row in lengths]
    columns = {"input_ids": ids, "labels": ids, "position_ids": places, "seq_lengths": lengths}
    return Dataset.from_dict(columns)


class InOrder(Trainer):  # type: ignore[misc, unused-ignore]
    """As docs/phases.md shows it for transformers 4."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return SequentialSampler(self.train_dataset)


@pytest.mark.parametrize("way", ["setting", "sampler", "default"])
def test_rows_of_phases_are_trained_in_their_order(way: str, tmp_path: Path) -> None:
    lengths = [[number, 3] for number in range(4, 44)]
    settings = SETTINGS | {"per_device_train_batch_size": 1, "remove_unused_columns": False}
    settings |= {"train_sampling_strategy": "sequential"} if way == "setting" else {}
    options = {"train_dataset": rows_of(lengths), "data_collator": to_hf}
    trainer = (InOrder if way == "sampler" else Trainer)(
        llama(), TrainingArguments(str(tmp_path), **settings), **options
    )
    sizes = [batch["input_ids"].shape[1] for batch in trainer.get_train_dataloader()]
    assert (sizes == [sum(row) for row in lengths]) == (way != "default")


def step_of(trainer: Any, rows: Any, folder: Path, **settings: Any) -> None:
    """One step of a trainer with a guarded model. settings: of the trainer, but for `args`."""
    arguments = {**SETTINGS, "num_train_epochs": 1, "per_device_train_batch_size": 1}
    args = settings.pop("args", TrainingArguments)(str(folder), **arguments)
    trainer(llama(), args, train_dataset=rows, **settings).train()


def test_the_guard_lets_flattened_rows_of_one_document_pass(tmp_path: Path) -> None:
    from transformers import DataCollatorWithFlattening

    class Ours(DataCollatorWithFlattening):  # type: ignore[misc, unused-ignore]
        """Reads boundaries by itself."""

        def __call__(self, features: Any, **_: Any) -> Any:
            return to_trl(features)

    step_of(Trainer, rows_of([[6], [9]]), tmp_path, data_collator=DataCollatorWithFlattening())
    keep = partial(TrainingArguments, remove_unused_columns=False)
    step_of(Trainer, rows_of([[6], [4, 5]]), tmp_path, data_collator=Ours(), args=keep)
    packs = rows_of([[6], [4, 5]])
    with pytest.raises(ValueError, match="row 1 of the dataset holds 2 documents, so they would"):
        step_of(Trainer, packs, tmp_path, data_collator=DataCollatorWithFlattening())


@LONG
@pytest.mark.parametrize("caching", [True, False])
def test_the_guard_refuses_packs_that_trl_packs_again_with_and_without_caches(
    caching: bool, shards: Path, tmp_path: Path
) -> None:
    pytest.importorskip("trl")
    import datasets

    was = datasets.is_caching_enabled()
    (datasets.enable_caching if caching else datasets.disable_caching)()
    try:
        REFUSED["trl SFTTrainer with packing=True on names of hf, guarded"](shards, tmp_path)
    finally:
        (datasets.enable_caching if was else datasets.disable_caching)()


RIGHT: dict[str, Any] = {
    "packing": False,
    "eval_packing": None,
    "padding_free": True,
    "max_length": None,
    "remove_unused_columns": True,
    "dataset_kwargs": None,
}
SKIPPED = {"skip_prepare_dataset": True}
OURS: dict[str, Any] = {
    "padding_free": False,
    "remove_unused_columns": False,
    "dataset_kwargs": SKIPPED,
}


@pytest.mark.parametrize(
    ("collator", "wrong", "words"),
    [
        (None, {}, None),
        (to_trl, {"max_length": 1024}, None),  # nothing is cut where preparation is skipped
        (None, {"padding_free": False, "max_length": 1024}, "padding_free=False, max_length=1024"),
        (None, {"packing": True}, "packing=True, eval_packing=True; expected packing=False, "),
        (None, {"eval_packing": True}, "eval_packing=True; expected eval_packing=False for rows"),
        (to_trl, {"padding_free": True}, "padding_free=True; expected padding_free=False for a"),
        (to_trl, {"remove_unused_columns": True}, "remove_unused_columns=True; expected"),
        (to_trl, {"dataset_kwargs": {}}, f"dataset_kwargs={{}}; expected dataset_kwargs={SKIPPED}"),
    ],
)
def test_check_trl_refuses_what_drops_the_boundaries(
    collator: Any, wrong: dict[str, Any], words: str | None
) -> None:
    config = SimpleNamespace(**RIGHT | (OURS if collator else {}) | wrong)
    if words is None:
        assert check_trl(config, data_collator=collator) is config
    else:
        with pytest.raises(ValueError, match=re.escape(f"the SFTConfig has {words}")):
            check_trl(config, data_collator=collator)


def test_check_trl_reads_the_settings_of_the_installed_trl(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    config = partial(trl.SFTConfig, str(tmp_path), bf16=False, use_cpu=True)
    check_trl(config(padding_free=True, max_length=None))
    check_trl(config(**OURS), data_collator=to_trl)
    with pytest.raises(ValueError, match="has padding_free=False, max_length=1024; expected"):
        check_trl(config())
