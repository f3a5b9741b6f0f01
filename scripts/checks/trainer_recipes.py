"""Trainers that only environments of `scripts/check_trainers` have: recipes and readers of exports.

As tests/helpers/recipes.py and export_readers.py, with the trainers' own classes.
"""

import importlib
import importlib.util
import json
import sys
import tempfile
from functools import partial
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch
from datasets import load_from_disk
from torch.nn.functional import cross_entropy

from packprep.exports.export import export
from packprep.loaders import PackedLoader, PackedShards, to_llama_factory, to_torchtune
from tests.helpers.export_readers import (
    Reader,
    ReadPack,
    mds_pack,
    npy_packs,
    pack_of,
    stored_packs,
)
from tests.helpers.recipes import (
    ONE_PACK,
    PACKS,
    SETTINGS,
    Losses,
    Recipe,
    alone,
    hf_trainer,
    llama,
    recorded,
    steps,
    tokenizer,
    train,
    train_alone,
)
from tests.helpers.tiny_shards import GOLDEN
from tests.helpers.torch_models import VOCABULARY


def llama_factory(module: str) -> Any:
    """A module of LLaMA-Factory, which imports torchaudio for models of speech only."""
    audio = ModuleType("torchaudio")
    audio.__spec__ = ModuleSpec("torchaudio", None)
    sys.modules.setdefault("torchaudio", audio)
    return importlib.import_module(f"llamafactory.{module}")


def llama_factory_trainer(mask_dtype: Any, shards: Path, folder: Path) -> tuple[Losses, Losses]:
    """LLaMA-Factory's own trainer of SFT, with its own arguments."""
    hparams, sft = llama_factory("hparams"), llama_factory("train.sft.trainer")
    arguments = hparams.TrainingArguments(str(folder), remove_unused_columns=False, **SETTINGS)
    trainer = recorded(sft.CustomSeq2SeqTrainer)(
        finetuning_args=hparams.FinetuningArguments(),
        processor=None,
        model=llama(),
        args=arguments,
        train_dataset=load_from_disk(str(shards)),
        data_collator=partial(to_llama_factory, mask_dtype=mask_dtype),
        tokenizer=tokenizer(),
    )
    trainer.train()
    return steps(trainer), alone(shards)


def llama_factory_run(shards: Path, folder: Path) -> tuple[Losses, Losses]:
    """LLaMA-Factory on an export, with its own reader of `tokenized_path`, collator and mask."""
    export(shards, str(folder / "rows"), "llama-factory")
    for part in (llama(), tokenizer()):
        part.save_pretrained(folder / "model")
    settings = SETTINGS | {
        "model_name_or_path": str(folder / "model"),
        "template": "empty",
        "dataset": "packed",
        "tokenized_path": str(folder / "rows"),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full",
        "neat_packing": True,
        "flash_attn": "sdpa",
        "cutoff_len": 64,
        "logging_steps": 1,
        "output_dir": str(folder / "out"),
    }
    llama_factory("train.tuner").run_exp(settings)
    state = json.loads((folder / "out" / "trainer_state.json").read_text())
    return [log["loss"] for log in state["log_history"] if "loss" in log], alone(shards)


def source_of(package: str, path: str) -> Path:
    """A file of a package that cannot be imported, because its dependencies are not installed."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / path


def axolotl(shards: Path, folder: Path) -> tuple[Losses, Losses]:
    """Rows of an export through Axolotl's own collator, a pack at a time."""
    export(shards, str(folder / "rows"), "axolotl")
    path = source_of("axolotl", "utils/collators/batching.py")
    spec = importlib.util.spec_from_file_location("axolotl_batching", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = ModuleType(spec.name)
    sys.modules[spec.name] = module  # its dataclasses look up their types there
    spec.loader.exec_module(module)
    collator = module.DataCollatorForSeq2Seq(tokenizer())
    rows = load_from_disk(str(folder / "rows" / "train"))
    return hf_trainer(collator, shards, folder / "out", rows, **ONE_PACK)


def torchtune(shards: Path, _folder: Path) -> tuple[Losses, Losses]:
    """A Llama of torchtune, called like in its recipes, which shift the labels."""
    from torchtune.models.llama3 import llama3

    def model() -> Any:
        torch.manual_seed(0)
        sizes = {
            "num_layers": 2,
            "num_heads": 4,
            "num_kv_heads": 2,
            "embed_dim": 32,
            "intermediate_dim": 48,
        }
        return llama3(vocab_size=VOCABULARY, max_seq_len=128, **sizes)

    (batch,) = PackedLoader(PackedShards(shards), len(PACKS), shuffle=False)
    packed, single = model(), model()

    def loss() -> Any:
        fields = to_torchtune(batch)
        labels = fields.pop("labels")
        return cross_entropy(packed(**fields)[0, :-1], labels[0, 1:])

    return train(loss, packed.parameters()), train_alone(
        lambda ids: single(ids), single.parameters(), shards
    )


# Recipes in trainers that only an environment of their own has.
TRAINERS: dict[str, Recipe] = {
    "axolotl collator on an export": axolotl,
    "torchtune model, to_torchtune": torchtune,
    "llamafactory CustomSeq2SeqTrainer": partial(llama_factory_trainer, None),
    "llamafactory on an export": llama_factory_run,
    "llamafactory CustomSeq2SeqTrainer, 4-D mask": partial(llama_factory_trainer, torch.float32),
}


def megatron_core(directory: Path, split: str) -> list[ReadPack]:
    """Packs by megatron-core's IndexedDataset."""
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    data = IndexedDataset(str(directory / split))
    return [
        pack_of([data[number].tolist() for number in range(first, last)])
        for first, last in pairwise(data.document_indices.tolist())
    ]


def olmo_core(directory: Path, split: str) -> list[ReadPack]:
    """Documents by OLMo-core, from the metadata beside the ids."""
    from olmo_core.data.utils import iter_document_indices

    path = directory / f"{split}.npy"
    return npy_packs(directory, split, list(iter_document_indices(path, use_array_if_local=False)))


def mosaicml_streaming(directory: Path, split: str) -> list[ReadPack]:
    """Samples by MosaicML's LocalDataset."""
    for unused in (
        "streaming.multimodal",
        "streaming.text",
        "streaming.vision",
    ):  # need torchvision
        sys.modules.setdefault(unused, MagicMock())
    from streaming import LocalDataset  # type: ignore[import-not-found]

    data = LocalDataset(local=str(directory), split=split)
    return [mds_pack(data[number]) for number in range(len(data))]


CLASSES: dict[str, tuple[str, Reader]] = {
    "megatron": ("megatron-core", megatron_core),
    "npy": ("ai2-olmo-core", olmo_core),
    "mds": ("mosaicml-streaming", mosaicml_streaming),
}


def check_export(to: str, _: Path | None = None) -> None:
    """Compare the reader's own class with the packs of two outputs; AssertionError for others."""
    for name in ("v1-example", *(["v1-rich"] if to != "megatron" else [])):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            for split in export(GOLDEN / name, str(out), to).splits:
                packs = CLASSES[to][1](out, split)
                assert packs, f"no packs of {split}"
                assert packs == stored_packs(GOLDEN / name, split, to), f"{name} {split} differs"
