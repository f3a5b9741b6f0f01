"""Settings of the trainers of docs/train, as each spells them.

`packprep equate --help` reads this table, so it imports nothing that is slow.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

SettingValue = int | float | str


class Spelling(NamedTuple):
    """Spelling of a setting by a trainer.

    line: of the file or call that has it, with places for name and value.
    names: its name of each setting.
    """

    line: str
    names: Mapping[str, str]

    def named(self, settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
        """The settings that the trainer has, by its names."""
        return {name: settings[key] for key, name in self.names.items() if key in settings}

    def lines(self, settings: Mapping[str, SettingValue]) -> list[str]:
        """The same as lines of text."""
        return [self.line.format(name, value) for name, value in self.named(settings).items()]


_ARGUMENTS = {
    "micro_batch": "per_device_train_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "epochs": "num_train_epochs",
    "learning_rate": "learning_rate",
    "warmup_steps": "warmup_steps",
}
_AXOLOTL = {"micro_batch": "micro_batch_size", "epochs": "num_epochs"}
_LOADER = {
    "sequences_per_step": "sequences_per_step",
    "ranks": "world_size",
    "loss_weights": "loss_weights",
}
_MEGATRON = {
    "micro_batch": "micro-batch-size",
    "packs_per_step": "global-batch-size",
    "steps": "train-iters",
    "learning_rate": "lr",
    "warmup_steps": "lr-warmup-iters",
}
_TORCHTITAN = {
    "micro_batch": "dataloader.packs",
    "batch_rows": "training.local_batch_size",
    "max_length": "training.seq_len",
    "packs_per_step": "training.global_batch_size",
    "steps": "training.steps",
    "learning_rate": 'optimizer.param_groups[-1].optimizer_kwargs["lr"]',
    "warmup_steps": "lr_scheduler.warmup_steps",
}

TRAINERS: Mapping[str, Spelling] = MappingProxyType(
    {
        "packprep": Spelling("{}={!r},", _LOADER),
        "transformers": Spelling("{}={},", _ARGUMENTS),
        "trl": Spelling("{}={},", _ARGUMENTS),
        "axolotl": Spelling("{}: {}", _ARGUMENTS | _AXOLOTL),
        "llama-factory": Spelling("{}: {}", _ARGUMENTS),
        "megatron": Spelling("--{} {}", _MEGATRON),
        "torchtitan": Spelling("config.{} = {}", _TORCHTITAN),
    }
)
"""Spellings by the name that `--for` takes; packprep is PackedLoader."""
