"""Exports in the command lines of trainers, with the YAML of the pages in docs/train.

`python -m tests.helpers.export_trainers` trains with each of them that is installed, prints a line
each, and exits 1 if a run leaks, or if one that is made to leak does not. The runs need a CPU only.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import torch
import yaml

from packprep.exports.export import export
from packprep.schemas import STANDARD_COLUMNS

from .recipes import PAGES, RATE, STEPS, TOLERANCE, Losses, loss_alone, tokenizer
from .tiny_shards import PLAIN, Row, write_output
from .torch_models import VOCABULARY, documents, tiny_llama

MAX_LENGTH = 68  # not a multiple of 8, to which LLaMA-Factory pads
MULTIPLE = 4
PACKS = [[7, 12, 5], [9, 3, 14, 2], [20, 6, 30]]
VALIDATION = [[11, 4, 8]]
COLUMNS = (*PLAIN, *(STANDARD_COLUMNS[name] for name in ("labels", "segment_lengths")))
SGD = {"weight_decay": 0.0, "max_grad_norm": 1e9, "logging_steps": 1}


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Command line of a trainer, and the block of a page that it is run with.

    packs: lengths of documents, [] for a pack of only filler; all of them make a step. settings:
    replace those of the page. data: the settings that name the export, with {}. right, leaks:
    settings of runs.
    """

    package: str
    module: tuple[str, ...]
    page: str
    to: str
    model: str
    packs: Sequence[list[int]]
    settings: Mapping[str, Any]
    data: Mapping[str, Any]
    right: Mapping[str, Mapping[str, Any]]
    leaks: Mapping[str, Mapping[str, Any]]


TRAINERS = (
    Trainer(
        package="axolotl",
        module=("axolotl.cli.train",),
        page="axolotl.md",
        to="axolotl",
        model="base_model",
        packs=PACKS[-1:],  # it averages the losses of the packs of a step, not of their tokens
        settings=SGD
        | {
            "bf16": False,
            "sequence_len": MAX_LENGTH,
            "gradient_accumulation_steps": 1,
            "num_epochs": STEPS,
            "evals_per_epoch": 1,
            "learning_rate": RATE,
            "lr_scheduler": "constant",
            "optimizer": "sgd",
        },
        data={
            "datasets": [{"path": "{}/train"}],
            "test_datasets": [{"path": "{}/validation"}],
        },
        right={
            "sdpa": {"attn_implementation": "sdpa"},
            "eager": {"attn_implementation": "eager"},
        },
        leaks={},  # with sample_packing, and without skip_prepare_dataset, it stops
    ),
    Trainer(
        package="llamafactory",
        module=("llamafactory.cli", "train"),
        page="llama-factory.md",
        to="llama-factory",
        model="model_name_or_path",
        packs=[*PACKS, []],
        settings=SGD
        | {
            "bf16": False,
            "template": "default",
            "cutoff_len": MAX_LENGTH,
            "gradient_accumulation_steps": len(PACKS) + 1,
            "num_train_epochs": STEPS,
            "learning_rate": RATE,
            "lr_scheduler_type": "constant",
            "optim": "sgd",
            "report_to": "none",
        },
        data={"tokenized_path": "{}"},
        right={"sdpa": {"flash_attn": "sdpa"}, "eager": {"flash_attn": "disabled"}},
        leaks={"no neat_packing": {"flash_attn": "sdpa", "neat_packing": False}},
    ),
)


def row(number: int, lengths: list[int]) -> Row:
    """A pack of documents padded to a multiple of 4, with filler behind them.

    Half of the documents begin without loss.
    """
    texts = documents(lengths, seed=number)
    rooms = [-(-length // MULTIPLE) * MULTIPLE for length in lengths]
    tokens: list[int] = []
    labels: list[int] = []
    for place, (text, room) in enumerate(zip(texts, rooms, strict=True)):
        untrained = 2 * (place % 2 == 0)
        padding = room - len(text)
        tokens += [*text, *[0] * padding]
        labels += [*[-100] * untrained, *text[untrained:], *[-100] * padding]
    ids = [*range(10 * number, 10 * number + len(lengths))]
    if filler := 1 if not lengths else 4 * (lengths != PACKS[1]):
        tokens, labels, rooms = tokens + [0] * filler, labels + [-100] * filler, [*rooms, filler]
        ids, lengths = [*ids, -1], [*lengths, 0]
    return {
        "tokens": tokens,
        "position_ids": [place for room in rooms for place in range(room)],
        "cu_seqlens": [0, *accumulate(rooms)],
        "document_ids": ids,
        "document_starts": [0] * len(ids),
        "labels": labels,
        "segment_lengths": lengths,
    }


def write_shards(directory: Path, packs: Sequence[list[int]]) -> None:
    """These packs, and a validation split."""
    splits = {
        "train": [[row(number, lengths) for number, lengths in enumerate(packs)]],
        "validation": [[row(number, lengths) for number, lengths in enumerate(VALIDATION, 20)]],
    }
    write_output(directory, splits, COLUMNS, max_length=MAX_LENGTH, vocab_size=VOCABULARY)


def alone(shards: Path) -> tuple[Losses, Losses]:
    """Losses of the steps on the documents alone, and of the validation split after each step."""
    model = tiny_llama().train()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    losses, evaluated = [], []

    def loss(split: str) -> Any:
        return loss_alone(lambda ids: model(input_ids=ids, use_cache=False).logits, shards, split)

    for _ in range(STEPS):
        value = loss("train")
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))
        evaluated.append(float(loss("validation").detach()))
    return losses, evaluated


def yaml_of(trainer: Trainer, shards: Path, folder: Path, settings: Mapping[str, Any]) -> Path:
    """The YAML of the page with the tiny model, the export and these settings."""
    text = (PAGES / trainer.page).read_text()
    (block,) = re.findall(r"```yaml file=[^\n]*\n(.*?)```", text, re.DOTALL)
    config = yaml.safe_load(block)
    assert trainer.data.keys() <= config.keys()
    exported = folder / "export"
    export(shards, str(exported), trainer.to)
    data = json.loads(json.dumps(dict(trainer.data)).replace("{}", str(exported)))
    tiny_llama().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    config |= {trainer.model: str(folder / "model"), "output_dir": str(folder / "out")}
    path = folder / "train.yaml"
    path.write_text(yaml.safe_dump(config | dict(trainer.settings) | data | dict(settings)))
    return path


def losses_of(trainer: Trainer, path: Path) -> Losses:
    """Losses of the steps of a run of the command line, and of the validation split after each."""
    stubs = path.parent / "stubs"  # LLaMA-Factory imports torchaudio, which needs CUDA here
    if importlib.util.find_spec("torchaudio") is None:
        stubs.mkdir()
        (stubs / "torchaudio.py").touch()
    offline = {"HF_HUB_OFFLINE": "1", "DISABLE_VERSION_CHECK": "1", "AXOLOTL_DO_NOT_TRACK": "1"}
    result = subprocess.run(
        [sys.executable, "-m", *trainer.module, str(path)],
        cwd=path.parent,
        env={**os.environ, **offline, "PYTHONPATH": str(stubs)},
        capture_output=True,
        text=True,
        check=False,
    )
    states = sorted((path.parent / "out").rglob("trainer_state.json"))
    if result.returncode or not states:
        raise RuntimeError(" ".join((result.stderr or result.stdout).split()[-40:]))
    history = json.loads(states[-1].read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    evaluated = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    return losses + evaluated[-STEPS:]  # Axolotl evaluates before the first step too


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for trainer in TRAINERS:
            if importlib.util.find_spec(trainer.package) is None:
                print(f"not run           {trainer.package} is not installed")
                continue
            shards = Path(temporary) / trainer.package
            write_shards(shards, trainer.packs)
            expected = [*chain(*alone(shards))]
            print(f"losses alone {' '.join(f'{loss:.6f}' for loss in expected)}")
            for number, (name, settings) in enumerate(({**trainer.right, **trainer.leaks}).items()):
                folder = shards.with_name(f"{trainer.package}-{number}")
                folder.mkdir()
                must_leak = name in trainer.leaks
                try:
                    losses = losses_of(trainer, yaml_of(trainer, shards, folder, settings))
                    size = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
                    right, measured = (
                        (size > 1e-3 if must_leak else size < TOLERANCE),
                        f"{size:.1e}",
                    )
                except Exception as error:
                    right, measured = False, f"{type(error).__name__}: {error}"
                failed += not right
                name += ", must leak" * must_leak
                line = f"{trainer.package} {version(trainer.package)} {name}"
                print(f"{'right' if right else 'WRONG'}  {measured:>9}  {line}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
