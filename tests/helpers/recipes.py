"""Recipes for trainers, from docs/train/ and for each adapter, each run for three steps.

The losses must be those of the documents alone. The model is a tiny Llama.

`tests/loaders/adapters/test_recipes.py` runs them with the installed libraries,
`scripts/check_trainers` with those of its own environments.
"""

import importlib
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import torch
from datasets import load_from_disk
from torch.nn.functional import cross_entropy

from packprep.derive.merge import merge
from packprep.loaders import (
    PackedLoader,
    PackedShards,
    guard,
    to_axolotl,
    to_flattening,
    to_forgather,
    to_hf,
    to_llama_factory,
    to_trl,
    to_trl_row,
)
from packprep.schemas import STANDARD_COLUMNS

from .tiny_shards import PLAIN, write_output
from .torch_models import VOCABULARY, documents, pack_of, tiny_llama

PAGES = Path(__file__).parents[2] / "docs" / "train"
STEPS = 3
RATE = 0.01
PACKS = [[7, 12, 5], [9, 3, 14, 2], [20, 6]]
FILLER = 4  # tokens after the last pack
TOLERANCE = 1e-5
LEAK = 1e-3  # a recipe that is made to leak differs by more
Losses = list[float]
# Shards and a folder to write to -> losses of the recipe, and losses of the documents alone.
Recipe = Callable[[Path, Path], tuple[Losses, Losses]]
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


def write_shards(directory: Path) -> None:
    """One shard of PACKS.

    Half of the documents begin without loss, the rest have a label at their first token.
    """
    rows = []
    for number, lengths in enumerate(PACKS):
        row = pack_of(10 * number, documents(lengths, seed=number))
        labels = list(row["tokens"])
        for start in row["cu_seqlens"][:-1:2]:
            labels[start : start + 2] = [-100] * 2
        rows.append(row | {"labels": labels})
    last = rows[-1]
    rows[-1] = {
        "tokens": last["tokens"] + [0] * FILLER,
        "position_ids": last["position_ids"] + [*range(FILLER)],
        "cu_seqlens": [*last["cu_seqlens"], sum(PACKS[-1]) + FILLER],
        "document_ids": [*last["document_ids"], -1],
        "document_starts": [*last["document_starts"], 0],
        "labels": last["labels"] + [-100] * FILLER,
    }
    columns = (*PLAIN, STANDARD_COLUMNS["labels"])
    write_output(directory, {"train": [rows]}, columns, max_length=64, vocab_size=VOCABULARY)


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


def loss_alone(logits: Callable[[Any], Any], shards: Path, split: str | None = None) -> Any:
    """Loss of every document alone.

    logits: function of token ids [1, n] without any argument that could leak.
    """
    total: Any = 0.0
    count = 0
    for pack in PackedShards(shards, split=split):
        tokens, labels = (
            torch.tensor(pack.columns[name].tolist()) for name in ("tokens", "labels")
        )
        for start, end in pairwise(pack.cu_seqlens.tolist()):
            targets = labels[start + 1 : end]
            if (targets != -100).any():
                predicted = logits(tokens[None, start:end])[0, :-1]
                total = total + cross_entropy(predicted, targets, reduction="sum")
                count += int((targets != -100).sum())
    return total / count


def train_alone(logits: Callable[[Any], Any], parameters: Any, shards: Path) -> Losses:
    """Losses of steps on every document alone."""
    return train(lambda: loss_alone(logits, shards), parameters)


@cache
def alone(shards: Path) -> Losses:
    model = tiny_llama().train()
    return train_alone(
        lambda ids: model(input_ids=ids, use_cache=False).logits, model.parameters(), shards
    )


_guarded = True


def llama(use_cache: bool = True, attention: str = "sdpa") -> Any:
    """The model of a recipe, guarded unless `leaking` runs the recipe."""
    model = tiny_llama(attention).train()
    model.config.use_cache = use_cache
    return guard(model) if _guarded else model


def leaking(recipe: "Recipe", shards: Path, folder: Path) -> tuple[Losses, Losses]:
    """Run a recipe without the guard."""
    global _guarded
    _guarded = False
    try:
        return recipe(shards, folder)
    finally:
        _guarded = True


def refused(recipe: "Recipe", shards: Path, folder: Path) -> None:
    """Run a recipe that leaks with the guard, which must refuse it."""
    try:
        recipe(shards, folder)
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

    words = Tokenizer(
        models.WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0")
    )
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1", pad_token="0")


def recorded(trainer: Any) -> Any:
    """Subclass of the trainer that keeps the exact loss of every step in `losses`."""

    class Recorded(trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            value = super().compute_loss(*args, **kwargs)
            loss = value[0] if isinstance(value, tuple) else value
            self.losses = [*getattr(self, "losses", []), float(loss.detach())]
            return value

    return Recorded


def loop(
    inputs: Callable[[Any], Mapping[str, Any]], attention: str, shards: Path, _folder: Path
) -> tuple[Losses, Losses]:
    """A plain loop: `model(**inputs(batch)).loss`, with one batch of all packs."""
    model = llama(attention=attention)
    (batch,) = PackedLoader(PackedShards(shards), len(PACKS), shuffle=False)
    return train(lambda: model(**inputs(batch.torch())).loss, model.parameters()), alone(shards)


def hf_trainer(
    collator: Any, shards: Path, folder: Path, rows: Any = None, **settings: Any
) -> tuple[Losses, Losses]:
    """Trainer on rows of load_from_disk."""
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(str(folder), remove_unused_columns=False, **(SETTINGS | settings))
    rows = load_from_disk(str(shards)) if rows is None else rows
    return trained(Trainer, arguments, rows, data_collator=collator), alone(shards)


def trained(
    kind: Any, arguments: Any, rows: Any, *, use_cache: bool = True, **options: Any
) -> Losses:
    """Losses of the steps of a trainer of this class. options: of the trainer."""
    trainer = recorded(kind)(llama(use_cache), arguments, train_dataset=rows, **options)
    trainer.train()
    return steps(trainer)


def steps(trainer: Any) -> Losses:
    """Losses of the steps of a recorded trainer."""
    each, losses = trainer.args.gradient_accumulation_steps, trainer.losses
    return [sum(losses[first : first + each]) for first in range(0, len(losses), each)]


def page_script(page: str, file: str) -> str:
    """The script of this name in a page of docs/train/."""
    text = (PAGES / page).read_text()
    (script,) = re.findall(rf'```python file="{re.escape(file)}"\n(.*?)```', text, re.DOTALL)
    return str(script)


def replaced(code: str, pairs: Mapping[str, str]) -> str:
    """The code with each text replaced; AssertionError if a text is not in it."""
    for old, new in pairs.items():
        assert old in code, old
        code = code.replace(old, new)
    return code


def page_trainer(
    page: str, file: str, shards: Path, folder: Path, **settings: Any
) -> tuple[Losses, Losses]:
    """Run a script of a page.

    Unchanged except for its folders, its model, the optimizer, and a record of the losses.
    """
    code = page_script(page, file)
    pairs = {
        '"packed"': repr(str(shards)),
        '"packed-hf"': repr(str(shards)),
        '"out"': repr(str(folder)),
        "LlamaForCausalLM(config)": "llama(config.use_cache)",
    }
    del pairs['"packed-hf"' if '"packed"' in code else '"packed"']
    if '"model"' in code:
        pairs['"model"'] = repr(str(folder / "model"))
    if "AutoTokenizer" in code:
        pairs['AutoTokenizer.from_pretrained("data/tokenizer")'] = "tokenizer()"
    code = replaced(code, pairs)
    code, trainers = re.subn(r"= (\w*Trainer)\(", r"= recorded(\1)(", code)
    code, arguments = re.subn(r"\b(TrainingArguments|SFTConfig)\(", r"with_settings(\1)(", code)
    assert trainers == arguments == 1

    def with_settings(arguments: Any) -> Callable[..., Any]:
        return lambda folder, **own: arguments(folder, **(own | SETTINGS | settings))

    names: dict[str, Any] = {
        "llama": llama,
        "tokenizer": tokenizer,
        "recorded": recorded,
        "with_settings": with_settings,
    }
    caching = datasets.is_caching_enabled()
    try:
        exec(code, names)
    finally:  # the page of TRL switches it off
        (datasets.enable_caching if caching else datasets.disable_caching)()
    return steps(names["trainer"]), alone(shards)


def hf_names(recipe: Recipe, shards: Path, folder: Path) -> tuple[Losses, Losses]:
    """A recipe on the same packs with the names of hf."""
    renamed = folder / "renamed"
    rows = [
        {name: values.tolist() for name, values in pack.columns.items()}
        for pack in PackedShards(shards)
    ]
    for row in rows:
        for start in row["cu_seqlens"][:-1]:
            row["labels"][start] = -100
    columns = (*PLAIN, STANDARD_COLUMNS["labels"])
    write_output(renamed, {"train": [rows]}, columns, max_length=64, vocab_size=VOCABULARY)
    merge([renamed], renamed, names="hf", overwrite=True)
    return recipe(renamed, folder / "out")


def sft(shards: Path, folder: Path, rows: Any = None, **settings: Any) -> tuple[Losses, Losses]:
    """SFTTrainer with TRL's collator and these settings, on rows of load_from_disk as they are."""
    trl: Any = importlib.import_module("trl")
    config = trl.SFTConfig(str(folder), bf16=False, **(SETTINGS | settings))
    rows = load_from_disk(str(shards)) if rows is None else rows
    losses = trained(trl.SFTTrainer, config, rows, processing_class=tokenizer())
    return losses, alone(shards)


def wrong_sft(shards: Path, folder: Path) -> tuple[Losses, Losses]:
    """Rows of to_trl_row with TRL's default padding."""
    rows = load_from_disk(str(shards))
    rows = rows.map(to_trl_row, remove_columns=rows.column_names)
    return sft(shards, folder, rows, max_length=None)


def with_collator(make: Callable[[Any], Any], shards: Path, folder: Path) -> tuple[Losses, Losses]:
    """Trainer on rows of load_from_disk with a collator of transformers. make: f(transformers)."""
    hf: Any = importlib.import_module("transformers")
    arguments = hf.TrainingArguments(str(folder), **(SETTINGS | ONE_PACK))
    rows = load_from_disk(str(shards))
    return trained(hf.Trainer, arguments, rows, data_collator=make(hf)), alone(shards)


def with_tokenizer(default: bool, shards: Path, folder: Path) -> tuple[Losses, Losses]:
    """Trainer with a processing_class, whose own collator adds a mask of ones.

    default: with default_data_collator instead, which adds none.
    """
    hf: Any = importlib.import_module("transformers")
    losses = trained(
        hf.Trainer,
        hf.TrainingArguments(str(folder), **(SETTINGS | ONE_PACK)),
        load_from_disk(str(shards)),
        use_cache=False,
        processing_class=tokenizer(),
        data_collator=hf.default_data_collator if default else None,
    )
    return losses, alone(shards)


COLLATORS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "to_hf": to_hf,
    "to_flattening": to_flattening,
    "to_trl": to_trl,
    "to_axolotl": to_axolotl,
    "to_forgather": to_forgather,
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
    "transformers Trainer of the page": partial(page_trainer, "transformers.md", "train.py"),
    "trl SFTTrainer of the page, to_trl_row": partial(page_trainer, "trl.md", "train.py"),
    "trl SFTTrainer of the page, to_trl": partial(page_trainer, "trl.md", "collator.py"),
    "transformers Trainer of the page, names of hf": partial(
        hf_names, partial(page_trainer, "transformers.md", "plain.py", **ONE_PACK)
    ),
    "transformers Trainer with default_data_collator, names of hf": partial(
        hf_names, partial(with_tokenizer, True)
    ),
    "trl SFTTrainer of the page, names of hf": partial(
        hf_names, partial(page_trainer, "trl.md", "plain.py")
    ),
}
# Rows of "Settings that leak" of transformers.md and trl.md.
HF_COLLATORS: dict[str, Callable[[Any], Any]] = {
    "DataCollatorWithFlattening": lambda hf: hf.DataCollatorWithFlattening(),
    "DataCollatorForSeq2Seq": lambda hf: hf.DataCollatorForSeq2Seq(tokenizer()),
    "DataCollatorForLanguageModeling": lambda hf: hf.DataCollatorForLanguageModeling(
        tokenizer(), mlm=False
    ),
}
TRL_SETTINGS: dict[str, dict[str, Any]] = {
    "its defaults": {},
    "max_length=None alone": {"max_length": None},
    # a row for each pack, as packs nearly are full
    "packing=True": {"packing": True, "max_length": sum(PACKS[-1]) + FILLER, **ONE_PACK},
}
# Recipes that leak: the comparison must see it.
_LEAKING: dict[str, Recipe] = {
    "transformers loop with a mask of ones": partial(
        loop,
        lambda batch: (
            to_hf(batch) | {"attention_mask": torch.ones(1, len(batch), dtype=torch.int64)}
        ),
        "sdpa",
    ),
    "transformers loop with a cache": partial(
        loop, lambda batch: to_hf(batch) | {"use_cache": True}, "sdpa"
    ),
    "transformers Trainer with a processing_class on names of hf": partial(
        hf_names, partial(with_tokenizer, False)
    ),
    "trl SFTTrainer with padding on rows of to_trl_row": wrong_sft,
    "trl SFTTrainer with padding on names of hf": partial(hf_names, wrong_sft),
    **{
        f"transformers Trainer with {name} on names of hf": partial(
            hf_names, partial(with_collator, make)
        )
        for name, make in HF_COLLATORS.items()
    },
    **{
        f"trl SFTTrainer with {name} on names of hf": partial(hf_names, partial(sft, **settings))
        for name, settings in TRL_SETTINGS.items()
    },
}
LEAKS = {name: partial(leaking, recipe) for name, recipe in _LEAKING.items()}
# The same recipes with the guard, which stops each.
REFUSED: dict[str, Callable[[Path, Path], None]] = {
    f"{name}, guarded": partial(refused, recipe) for name, recipe in _LEAKING.items()
}


def difference(losses: Losses, expected: Losses) -> float:
    assert len(losses) == len(expected) == STEPS
    return max(abs(one - other) for one, other in zip(losses, expected, strict=True))
