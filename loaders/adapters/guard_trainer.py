"""Boundaries that a Trainer loses before it calls the model, where no argument shows it.

transformers' DataCollatorWithFlattening numbers each row as one document, and TRL's packing=True
packs rows again and numbers each of them so. The call is then that of longer documents. A model
does not know its trainer, so it is looked for on the stack, in the first step.
"""

import sys
import weakref
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

_ROWS = 16  # rows of a dataset that are read to see if they hold several documents
_FLATTENED = (
    "DataCollatorWithFlattening numbers each row as one document, and row {row} of the dataset "
    "holds {documents}, so they would see each other; use data_collator=to_hf with "
    "remove_unused_columns=False"
)
_PACKED_AGAIN = (
    "the SFTConfig has packing=True: TRL packs the rows again and numbers each pack as one "
    "document, so its documents would see each other; set packing=False, padding_free=True, "
    "max_length=None. For rows that are not packed: guard(model, allow_unpacked=True)"
)
_STILL_PACKED_AGAIN = (
    "the SFTConfig has packing=True, and the rows are packs of packprep ({path}): TRL packs them "
    "again and numbers each pack as one document, so its documents would see each other; set "
    "packing=False, padding_free=True, max_length=None"
)


class TrainerCheck:
    """Check each Trainer once, at its first step; state that no copy of a model needs."""

    def __init__(self) -> None:
        self._checked: Any = None

    def __getstate__(self) -> dict[str, None]:
        return {"_checked": None}

    def check(self, allow_unpacked: bool) -> None:
        """Raise ValueError if the Trainer that makes this call loses boundaries.

        allow_unpacked: rows may be documents, so TRL may pack them if they are not known as packs.
        """
        trainer = _trainer()
        if trainer is None or (self._checked is not None and self._checked() is trainer):
            return
        fault = _fault(trainer, allow_unpacked)
        if fault is not None:
            raise ValueError(fault)
        self._checked = weakref.ref(trainer)


def made_by() -> str:
    """Names of the Trainer and collator that made the call; empty outside a Trainer."""
    trainer = _trainer()
    if trainer is None:
        return ""
    collator = trainer.data_collator
    name = getattr(collator, "__name__", None) or type(collator).__name__
    return f" ({type(trainer).__name__} with {name})"


def _trainer() -> Any:
    """The transformers Trainer whose step this is, or None."""
    transformers = sys.modules.get("transformers.trainer")
    if transformers is None:
        return None
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "training_step":
            trainer = frame.f_locals.get("self")
            if isinstance(trainer, transformers.Trainer):
                return trainer
        frame = frame.f_back
    return None


def _fault(trainer: Any, allow_unpacked: bool) -> str | None:
    from transformers import DataCollatorWithFlattening

    dataset: Any = trainer.train_dataset
    if type(trainer.data_collator).__call__ is DataCollatorWithFlattening.__call__:
        held = _first_pack(dataset)
        if held is not None:
            return _FLATTENED.format(row=held[0], documents=f"{held[1]} documents")
    if not getattr(trainer.args, "packing", False):
        return None
    if not allow_unpacked:
        return _PACKED_AGAIN
    path = _output_of(dataset)
    return None if path is None else _STILL_PACKED_AGAIN.format(path=path)


def _first_pack(dataset: Any) -> tuple[int, int] | None:
    """A row that holds several documents, and their number, among rows all over a dataset."""
    columns = {*(getattr(dataset, "column_names", None) or ())}
    if not columns & {"seq_lengths", "cu_seqlens", "position_ids"} or not hasattr(
        dataset, "select"
    ):
        return None
    for row in range(0, len(dataset), max(1, len(dataset) // _ROWS)):
        if (count := _documents_in(dataset[row])) > 1:
            return row, count
    return None


def _documents_in(row: Mapping[str, Sequence[int]]) -> int:
    """Number of documents of a row, by the first column that says it."""
    if "seq_lengths" in row:
        return len(row["seq_lengths"])
    if "cu_seqlens" in row:
        return len(row["cu_seqlens"]) - 1
    return 1 + sum(int(after <= before) for before, after in pairwise(row["position_ids"]))


def _output_of(dataset: Any) -> Path | None:
    """The output of packprep that a dataset was loaded from or mapped from, by its files.

    None if that is not known: without the cache of datasets, a mapped one is in another folder.
    """
    for file in getattr(dataset, "cache_files", None) or ():
        folder = Path(file["filename"]).parent
        for output in (folder, folder.parent):  # a split has a folder of its own
            if (output / "manifest.json").is_file() and (output / "report.json").is_file():
                return output
    return None
