"""Recipes for trainers of transformers: three steps on packs, and on the documents alone.

A recipe gets folders and returns both losses, which must be equal. The model is a tiny Llama.
trainer_contracts.py runs them in the environments of `scripts/check_trainers`.
"""

import importlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import load_from_disk
from torch.nn.functional import cross_entropy

from packprep import BuildConfig, build
from packprep.loaders import (
    PackedBatch,
    PackedLoader,
    PackedShards,
    guard,
    to_axolotl,
    to_hf,
    to_llama_factory,
    to_trl,
)

STEPS, RATE, VOCABULARY = 3, 0.01, 64
PACKS = [[7, 12, 5], [9, 3, 14, 2], [20, 6]]  # lengths of the documents of each pack
LONGEST = max(map(sum, PACKS))
TOLERANCE = 1e-5
LEAK = 1e-3  # a recipe that is made to leak differs by more
Losses = list[float]
Both = tuple[Losses, Losses]
SETTINGS: dict[str, Any] = {
    # every step trains on all packs, so their order has no effect
    "per_device_train_batch_size": len(PACKS),
    "num_train_epochs": STEPS,
    "max_steps": -1,  # epochs decide
    "optim": "sgd",
    "learning_rate": RATE,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
}
ONE_PACK: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": len(PACKS),
}


class Places(NamedTuple):
    """Outputs with the packs of PACKS, and a folder to write to.

    packed: half of the documents begin without loss. named: the same with the names of
    `--columns hf`. plain: all tokens are trained.
    """

    packed: Path
    named: Path
    plain: Path
    out: Path


Recipe = Callable[[Places], Both]


def write_packs(folder: Path) -> Places:
    """Build the outputs."""
    random, rows, plain = np.random.default_rng(0), list[str](), list[str]()
    for number, length in enumerate(length for pack in PACKS for length in pack):
        ids = random.integers(2, VOCABULARY, length).tolist()
        labels = [-100] * 2 + ids[2:] if number % 2 else ids
        rows.append(f'{{"ids": {ids}, "labels": {labels}}}\n')
        plain.append(f'{{"ids": {ids}}}\n')
    (folder / "rows.jsonl").write_text("".join(rows))
    (folder / "plain.jsonl").write_text("".join(plain))
    options: dict[str, Any] = {
        "sources": (str(folder / "rows.jsonl"),),
        "tokenizer": VOCABULARY,
        "max_length": LONGEST,
        "strategy": "greedy",
        "order": "input",
    }
    masked = options | {"ids": "ids,labels:labels"}
    build(BuildConfig(output=str(folder / "packed"), **masked))
    build(BuildConfig(output=str(folder / "named"), columns="hf", **masked))
    options |= {"sources": (str(folder / "plain.jsonl"),), "ids": "ids"}
    build(BuildConfig(output=str(folder / "plain"), **options))
    return Places(*(folder / name for name in Places._fields))


def whole_batch(places: Places) -> PackedBatch:
    """All packs in one batch."""
    (batch,) = PackedLoader(PackedShards(places.packed), len(PACKS), shuffle_window=0)
    assert np.diff(batch.cu_seqlens).tolist() == [length for pack in PACKS for length in pack]
    return batch


def train(loss: Callable[[], Any], parameters: Any) -> Losses:
    """Losses of steps of plain gradient descent."""
    optimizer = torch.optim.SGD(parameters, RATE)
    losses = []
    for _ in range(STEPS):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
    return losses


def train_alone(logits: Callable[[Any], Any], parameters: Any, places: Places) -> Losses:
    """Losses of steps on every document alone. logits: of ids [1, n], without another argument."""

    def loss() -> Any:
        total: Any = 0.0
        count = 0
        for pack in PackedShards(places.packed):
            tokens, labels = (torch.tensor(pack[name].tolist()) for name in ("tokens", "labels"))
            for start, end in pairwise(pack["cu_seqlens"].tolist()):
                targets = labels[start + 1 : end]
                predicted = logits(tokens[None, start:end])[0, :-1]
                total = total + cross_entropy(predicted, targets, reduction="sum")
                count += int((targets != -100).sum())
        return total / count

    return train(loss, parameters)


@cache
def alone(places: Places) -> Losses:
    model = llama(guarded=False)
    return train_alone(
        lambda ids: model(input_ids=ids, use_cache=False).logits, model.parameters(), places
    )


def llama(attention: str = "sdpa", *, use_cache: bool = True, guarded: bool = True) -> Any:
    """The model of a recipe. guarded: a call that joins documents is an error."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,  # so a leak changes logits by about one
        attn_implementation=attention,
    )
    model: Any = LlamaForCausalLM(config).train()
    model.config.use_cache = use_cache
    return guard(model) if guarded else model


def refused(recipe: Recipe, places: Places) -> None:
    """A recipe that leaks is stopped by the guard."""
    try:
        recipe(places)
    except ValueError as error:
        if "document" in str(error):
            return
        raise
    raise AssertionError("it trained: the guard raised nothing")


@cache
def tokenizer() -> Any:
    """A tokenizer of words "0", "1", ...; trainers need one, but use only its padding."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {str(number): number for number in range(VOCABULARY)}
    made = Tokenizer(models.WordLevel(words, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="1", pad_token="0")


def recorded(trainer: Any) -> Any:
    """Subclass of the trainer that keeps the exact loss of every step in `losses`."""

    class Recorded(trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            value = super().compute_loss(*args, **kwargs)
            loss = value[0] if isinstance(value, tuple) else value
            self.losses = [*getattr(self, "losses", []), float(loss.detach())]
            return value

    return Recorded


def steps(trainer: Any) -> Losses:
    """Losses of the steps of a recorded trainer."""
    each, losses = trainer.args.gradient_accumulation_steps, trainer.losses
    return [sum(losses[first : first + each]) for first in range(0, len(losses), each)]


def loop(
    inputs: Callable[[Any], Mapping[str, Any]],
    attention: str,
    places: Places,
    *,
    guarded: bool = True,
) -> Both:
    """A plain loop: `model(**inputs(batch)).loss`, with one batch of all packs."""
    model, batch = llama(attention, guarded=guarded), whole_batch(places).torch()
    return train(lambda: model(**inputs(batch)).loss, model.parameters()), alone(places)


def hf_trainer(
    collator: Any, places: Places, rows: Any = None, *, guarded: bool = True, **settings: Any
) -> Both:
    """Trainer on rows of load_from_disk. collator: of transformers, by its name, or a function."""
    hf: Any = importlib.import_module("transformers")
    options = {"remove_unused_columns": False, **SETTINGS, **settings}
    rows = load_from_disk(str(places.packed)) if rows is None else rows
    trainer = recorded(hf.Trainer)(
        llama(guarded=guarded),
        hf.TrainingArguments(str(places.out), **options),
        data_collator=getattr(hf, collator)() if isinstance(collator, str) else collator,
        train_dataset=rows,
    )
    trainer.train()
    return steps(trainer), alone(places)


def flattened(places: Places, *, guarded: bool = True) -> Both:
    """DataCollatorWithFlattening on rows of hf names, which takes a pack for a document."""
    rows = load_from_disk(str(places.named))
    settings = ONE_PACK | {"remove_unused_columns": True}
    return hf_trainer("DataCollatorWithFlattening", places, rows, guarded=guarded, **settings)


def sft(places: Places, *, guarded: bool = True, **settings: Any) -> Both:
    """SFTTrainer on rows with the names of hf."""
    trl: Any = importlib.import_module("trl")
    trainer = recorded(trl.SFTTrainer)(
        llama(guarded=guarded),
        trl.SFTConfig(str(places.out), bf16=False, **(SETTINGS | settings)),
        train_dataset=load_from_disk(str(places.named)),
        processing_class=tokenizer(),
    )
    trainer.train()
    return steps(trainer), alone(places)


def ones(batch: PackedBatch) -> dict[str, Any]:
    """Fields with a mask of ones, with which transformers ignores the boundaries."""
    return to_hf(batch) | {"attention_mask": torch.ones(1, len(batch), dtype=torch.int64)}


COLLATORS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "to_hf": to_hf,
    "to_trl": to_trl,
    "to_axolotl": to_axolotl,
    "to_llama_factory": to_llama_factory,
    "to_llama_factory, 4-D mask": partial(to_llama_factory, mask_dtype=torch.float32),
}
# By name; the first word of the name is the package that the recipe needs.
RECIPES: dict[str, Recipe] = {
    **{
        f"transformers loop, {attention}, {name}": partial(loop, collator, attention)
        for name, collator in COLLATORS.items()
        for attention in ("sdpa", "eager")
    },
    **{
        f"transformers Trainer, {name}": partial(hf_trainer, collator)
        for name, collator in COLLATORS.items()
    },
    "trl SFTTrainer, padding_free on --columns hf": partial(
        sft, padding_free=True, max_length=None
    ),
}
_LEAKING: dict[str, Callable[..., Both]] = {
    "transformers loop with a mask of ones": partial(loop, ones, "sdpa"),
    "transformers Trainer with DataCollatorWithFlattening": flattened,
    "trl SFTTrainer with its defaults": sft,
    "trl SFTTrainer with packing=True": partial(
        sft, packing=True, max_length=sum(PACKS[-1]), **ONE_PACK
    ),
}
LEAKS = {name: partial(recipe, guarded=False) for name, recipe in _LEAKING.items()}
"""Recipes that leak: the comparison must see it, and the guard must stop it."""
REFUSED = {f"{name}, guarded": partial(refused, recipe) for name, recipe in _LEAKING.items()}


def difference(losses: Losses, expected: Losses) -> float:
    assert len(losses) == len(expected) == STEPS
    return max(abs(one - other) for one, other in zip(losses, expected, strict=True))
