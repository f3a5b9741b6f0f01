"""Rows and batches for TRL's SFTTrainer, and a check of its settings."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from packprep.schemas.columns import NO_LOSS

from ..batch import PackedBatch
from ..rows import Rows, row_boundaries, row_tokens
from ..shape import refuse_pairs
from ..trees import refuse_trees
from .transformers import to_flattening


def to_trl(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields that TRL's padding-free collator makes from rows with input_ids and seq_lengths.

    The fields of `to_flattening`, and seq_idx.

    SFTTrainer(data_collator=to_trl, args=SFTConfig(remove_unused_columns=False,
    dataset_kwargs={"skip_prepare_dataset": True}, ...)) trains on load_from_disk rows as they are;
    `check_trl` checks a config for that. Tested with TRL 1.16 on transformers 4.57.6 and 5.23.
    """
    return to_flattening(batch, return_seq_idx=True)


def to_trl_row(row: Any) -> dict[str, list[int]]:
    """One row with TRL's column names.

    Use: `dataset.map(to_trl_row, remove_columns=dataset.column_names)`.

    input_ids: list of int, as stored. labels: list of int, as stored, or the ids if the row has no
    labels; -100 on the first token of every segment, so that no label crosses a boundary.
    seq_lengths: list of int, the lengths of the segments. TRL uses the boundaries only with
    SFTConfig(padding_free=True, max_length=None); `check_trl` checks that. Tested with TRL 1.16 on
    transformers 4.57.6 and 5.23.
    """
    refuse_trees("segment_parents" in row, "to_trl_row")
    refuse_pairs("pair_sides" in row, "to_trl_row")
    boundaries, tokens = row_boundaries(row).tolist(), row_tokens(row).tolist()
    labels = [int(label) for label in row.get("labels", tokens)]
    for start in boundaries[:-1]:
        labels[start] = NO_LOSS
    lengths = [end - start for start, end in pairwise(boundaries)]
    return {
        "input_ids": tokens,
        "labels": labels,
        "seq_lengths": lengths,
    }


def check_trl(config: Any, *, data_collator: Any = None) -> Any:
    """Return the SFTConfig if the documents of a pack stay isolated with it.

    data_collator: the one given to SFTTrainer, such as `to_trl`; None for TRL's own collator on
    rows of `to_trl_row`. ValueError that names every wrong setting. Example:
    SFTTrainer(model, check_trl(SFTConfig(padding_free=True, max_length=None)), train_dataset=rows)
    """
    expected: dict[str, object] = {"packing": False, "eval_packing": False}
    if data_collator is None:
        expected |= {"padding_free": True, "max_length": None}
        purpose = "for rows of to_trl_row and TRL's own collator"
    else:
        expected |= {"padding_free": False, "remove_unused_columns": False}
        purpose = "for a data_collator of packprep"
    actual = {name: getattr(config, name) for name in expected}
    if actual["eval_packing"] is None:  # TRL then takes the value of packing
        actual["eval_packing"] = actual["packing"]
    if data_collator is not None:
        expected["dataset_kwargs"] = {"skip_prepare_dataset": True}
        skips = (config.dataset_kwargs or {}).get("skip_prepare_dataset")
        actual["dataset_kwargs"] = expected["dataset_kwargs"] if skips else config.dataset_kwargs
    wrong = [name for name, value in expected.items() if actual[name] != value]
    if wrong:
        raise ValueError(
            f"the SFTConfig has {_settings(actual, wrong)}; expected {_settings(expected, wrong)} "
            f"{purpose}; set that, or TRL drops the boundaries of packed documents"
        )
    return config


def _settings(values: Mapping[str, object], names: Sequence[str]) -> str:
    return ", ".join(f"{name}={values[name]!r}" for name in names)
