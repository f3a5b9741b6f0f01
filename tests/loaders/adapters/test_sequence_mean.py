"""The class of docs/train/from-unpacked.md gives trainers the gradient of single sequences."""

from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import blocks_of
from tests.helpers.torch_models import skip_without, tiny_llama
from tests.helpers.zoo import Zoo

skip_without("torch", "transformers", "accelerate")

import torch  # noqa: E402
from datasets import load_from_disk  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

from packprep.loaders import PackedShards, to_hf  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "train" / "from-unpacked.md"
PACKS = [0, 3, 5]


@pytest.mark.long
@pytest.mark.parametrize("unit", ["segment", 2])
def test_a_step_of_trainer_has_the_gradient_of_single_sequences(
    zoo: Zoo, tmp_path: Path, unit: Any
) -> None:
    code = [b.text for b in blocks_of(PAGE.read_text(), PAGE.name) if b.file == "sequence_mean.py"]
    names: dict[str, Any] = {}
    exec(code[0], names)
    shards = PackedShards(zoo["chats"])
    model = tiny_llama(vocab_size=shards.manifest.vocab_size)
    units = []
    for number in PACKS:
        losses, pack = [], shards[number]
        for first, end in zip(pack.cu_seqlens[:-1], pack.cu_seqlens[1:], strict=True):
            tokens = torch.tensor(pack.tokens[first:end].tolist())
            labels = torch.tensor(pack.labels[first:end].tolist())[1:]  # type: ignore[index]
            each = cross_entropy(model(tokens[None]).logits[0, :-1], labels, reduction="none")
            losses.append(each[labels != -100])
        size = 1 if unit == "segment" else unit
        units += [torch.cat(losses[at : at + size]).mean() for at in range(0, len(losses), size)]
    parameters = [*model.parameters()]
    expected = torch.autograd.grad(torch.stack(units).mean(), parameters)
    before = [parameter.detach().clone() for parameter in parameters]
    trainer = type("Weighted", (names["SequenceMean"], Trainer), {"unit": unit})(
        model,
        TrainingArguments(
            str(tmp_path / "out"),
            remove_unused_columns=False,
            per_device_train_batch_size=1,
            gradient_accumulation_steps=len(PACKS),
            max_steps=1,
            optim="sgd",
            learning_rate=1.0,
            lr_scheduler_type="constant",
            max_grad_norm=1e9,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=load_from_disk(zoo["chats"]).select(PACKS),
        data_collator=to_hf,
    )
    trainer.train()
    for start, parameter, gradient in zip(before, parameters, expected, strict=True):
        torch.testing.assert_close(start - parameter.detach(), gradient, atol=1e-5, rtol=1e-4)
