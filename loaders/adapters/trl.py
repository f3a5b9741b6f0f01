"""Rows and batches for TRL's SFTTrainer, and a check of its settings."""

from itertools import pairwise
from typing import Any

from packprep.schemas.columns import NO_LOSS

from ..batch import PackedBatch
from ..rows import Rows
from .transformers import to_flattening


def to_trl(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields that TRL's padding-free collator makes of rows with input_ids and seq_lengths.

    Those of `to_flattening`, and seq_idx.

    SFTTrainer(data_collator=to_trl, args=SFTConfig(remove_unused_columns=False,
    dataset_kwargs={"skip_prepare_dataset": True}, ...)) trains on load_from_disk rows as they are;
    `check_trl` holds a config to that. Proven with TRL 1.16 on transformers 4.57.6 and 5.23.
    """
    return to_flattening(batch, return_seq_idx=True)


def to_trl_row(row: Any) -> dict[str, Any]:
    """One row by TRL's own column names.

    Use: `dataset.map(to_trl_row, remove_columns=dataset.column_names)`.

    input_ids: list of int, as stored. labels: list of int, as stored, or the ids where none are;
    -100 on the first token of every segment, so that no label crosses a boundary. seq_lengths: list
    of int, the segments' lengths. Without SFTConfig(padding_free=True, max_length=None) TRL uses no
    boundaries: `check_trl`. Proven with TRL 1.16 on transformers 4.57.6 and 5.23.
    """
    boundaries = [int(at) for at in row["cu_seqlens"]]
    labels = [int(label) for label in row.get("labels", row["tokens"])]
    for start in boundaries[:-1]:
        labels[start] = NO_LOSS
    lengths = [end - start for start, end in pairwise(boundaries)]
    return {
        "input_ids": [int(token) for token in row["tokens"]],
        "labels": labels,
        "seq_lengths": lengths,
    }


def check_trl(config: Any, *, data_collator: Any = None) -> Any:
    """Return the SFTConfig if packed rows stay isolated with it.

    ValueError with each wrong setting if not.

    data_collator: the one SFTTrainer gets; None for TRL's own, on rows of `to_trl_row`, else e.g.
    `to_trl`. Example: SFTTrainer(model, check_trl(SFTConfig(padding_free=True, max_length=None)),
    train_dataset=rows)
    """
    expected: dict[str, Any] = {"packing": False, "eval_packing": False}
    if data_collator is None:
        expected |= {"padding_free": True, "max_length": None}
        purpose = "for rows of to_trl_row and TRL's own collator"
    else:
        expected |= {"padding_free": False, "remove_unused_columns": False}
        purpose = "for a data_collator of packprep"
    found = {name: getattr(config, name) for name in expected}
    if found["eval_packing"] is None:  # TRL then takes the value of packing
        found["eval_packing"] = found["packing"]
    if data_collator is not None:
        expected["dataset_kwargs"] = {"skip_prepare_dataset": True}
        skips = (config.dataset_kwargs or {}).get("skip_prepare_dataset")
        found["dataset_kwargs"] = expected["dataset_kwargs"] if skips else config.dataset_kwargs
    wrong = [name for name, value in expected.items() if found[name] != value]
    if wrong:
        raise ValueError(
            f"the SFTConfig has {', '.join(f'{name}={found[name]!r}' for name in wrong)}; expected "
            f"{', '.join(f'{name}={expected[name]!r}' for name in wrong)} {purpose}; set that, or "
            "TRL drops the "
            "boundaries of packed documents"
        )
    return config
