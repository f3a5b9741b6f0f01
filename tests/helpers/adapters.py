"""Every adapter of the product, ready to be called with a batch."""

from collections.abc import Callable
from functools import partial
from typing import Any

from packprep.loaders import adapters

_REQUIRED: dict[str, dict[str, Any]] = {
    "to_hf_4d": {"config": None},
    "to_torchtitan": {"version": "0.3"},
}
MASKS = ("to_block_sparse", "to_flex_block_mask", "to_seq_idx")
"""Those that give no labels."""

EVERY: dict[str, Callable[[Any], Any]] = {
    name: partial(getattr(adapters, name), **_REQUIRED.get(name, {}))
    for name in dir(adapters)
    if name.startswith("to_") and name != "to_trl_row"
}
WITH_LABELS = {name: adapter for name, adapter in EVERY.items() if name not in MASKS}
"""Those that give a trainer labels of a batch or of rows."""


def model_calls(batch: Any) -> dict[str, Callable[[Any], Any]]:
    """Those whose fields are the call of a transformers model."""
    fields = {name: adapter(batch) for name, adapter in WITH_LABELS.items()}
    return {name: WITH_LABELS[name] for name, each in fields.items() if "use_cache" in each}


def plain(fields: Any) -> Any:
    """The same with each tensor as (dtype, list)."""
    if isinstance(fields, dict):
        return {name: plain(value) for name, value in fields.items()}
    if isinstance(fields, tuple):
        return tuple(map(plain, fields))
    if hasattr(fields, "tolist"):
        return str(fields.dtype).removeprefix("torch."), fields.tolist()
    return fields
