"""Plugin for Axolotl: it trains on packs of the sources under `packprep` in its YAML file.

    plugins: [packprep.axolotl.Plugin]
    packprep: {sources: chats.jsonl, messages: messages, holdout: 1%}

The keys are those of `packprep.dataset`. Without them, `tokenizer` is that of `base_model`, and
`max_length` is `sequence_len`. Every rank calls it, so one process builds, before any collective.
"""

from typing import Any

from axolotl.common.datasets import TrainDatasetMeta
from axolotl.integrations.base import BasePlugin
from axolotl.loaders import load_tokenizer
from axolotl.utils.trainer import calculate_total_num_steps
from pydantic import BaseModel

from .in_trainer import dataset

_COLUMNS = ["input_ids", "labels", "position_ids"]  # Axolotl's collator pads every column
_PACKED = {"sample_packing": False, "micro_batch_size": 1}


class Arguments(BaseModel):
    """The key that the plugin adds to Axolotl's YAML file."""

    packprep: dict[str, Any]


class Plugin(BasePlugin):  # type: ignore[misc, unused-ignore]
    """Axolotl's own preparation is left out."""

    def register(self, cfg: dict[str, Any]) -> None:
        """Name a data set, which Axolotl asks for, but does not read with this plugin."""
        cfg.setdefault("datasets", [{"path": "packprep", "type": "completion"}])

    def get_input_args(self) -> str:
        return f"{__name__}.Arguments"

    def load_datasets(self, cfg: Any, preprocess: bool = False) -> Any:
        """Return the packs as Axolotl has its data sets. ValueError for settings that join them."""
        for key, value in _PACKED.items():
            if (cfg[key] or False) != value:
                raise ValueError(
                    f"{key} is {cfg[key]}; the rows are packs already, each a batch of its own: "
                    f"set {key}: {str(value).lower()}"
                )
        options = {"max_length": cfg.sequence_len, **cfg.packprep}
        options.setdefault("tokenizer", load_tokenizer(cfg))
        packs: Any = dataset(**options)
        splits = packs if isinstance(packs, dict) else {"train": packs}
        rows = {name: split.select_columns(_COLUMNS) for name, split in splits.items()}
        steps = None if preprocess else calculate_total_num_steps(cfg, rows["train"])
        if steps and cfg.max_steps:
            steps = min(steps, cfg.max_steps)
        return TrainDatasetMeta(rows["train"], rows.get("validation"), steps)
