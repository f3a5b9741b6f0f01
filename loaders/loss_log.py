"""The flight recorder of a training: the loss of every segment, a few bytes each."""

from collections import deque
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.loss_log import LOSSES, header_of, read_fingerprint, record_of, sound_records

from .batch import PackedBatch, Tensor
from .loader import PackedLoader
from .trees import refuse_trees

_OF_PACKS = ("cu_seqlens", "pack_boundaries", "pack_numbers")
_LATE = 8  # batches whose losses a GPU may not have computed yet


class LossLog:
    """Append the losses of the segments of each batch to LOG/rank-00000.losses.

    `packprep spike LOG OUT` names the documents whose losses are out of line. A record takes 2
    bytes for a segment and 8 for a pack, and is written at once: a process that is killed loses no
    earlier record. A log that exists is continued; steps that are trained again after a restart
    replace their earlier records.

    path: folder of the log, of all ranks. loader: whose batches are logged. Use one log in each
    process whose rank the loader has: of context- or tensor-parallel ranks, in one of them.

    with LossLog("losses", loader) as log: log.add(step, batch, segment_means(...))

    Raises ValueError for packs without a manifest, with trees, and for a log of other packs.
    """

    def __init__(self, path: str | Path, loader: PackedLoader) -> None:
        shards = loader.shards
        refuse_trees(shards.has_trees, "LossLog")
        fingerprint = shards.fingerprint
        _ = shards.manifest  # without one, no document could be named: an error that says so
        self.file = Path(path) / f"rank-{loader.rank:05d}{LOSSES}"
        self.file.parent.mkdir(parents=True, exist_ok=True)
        content = self.file.read_bytes() if self.file.exists() else b""
        written = read_fingerprint(content, str(self.file))
        if written not in (None, fingerprint):
            raise ValueError(
                f"{self.file} is a log of other packs than those of {shards.path}; choose another "
                "folder, or delete the log"
            )
        self._late: deque[tuple[int, int, Tensor, Any]] = deque()
        self._file = self.file.open("r+b" if content else "wb", buffering=0)
        if written is None:
            self._file.truncate(0)
            self._file.write(header_of(fingerprint))
        else:  # a torn record is overwritten
            ends = [len(header_of(fingerprint))]
            ends += [end for _, end in sound_records(content, str(self.file))]
            self._file.truncate(ends[-1])
        self._file.seek(0, 2)
        if written is not None:
            nothing = np.empty(0, np.int64)
            self._file.write(record_of(0, nothing, nothing, nothing))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, step: int, batch: PackedBatch, losses: Tensor) -> None:
        """Log the loss of each segment of a batch of the loader, on any device.

        step: of training, the same for all batches of a step. losses: float [S], a mean over the
        trained tokens of each segment, see `segment_means`; tensor or array. Does not wait for a
        GPU: its losses are written at one of the next calls, or by `close`. ValueError for a batch
        that is not of a PackedLoader, or for another number of losses.
        """
        if batch.pack_numbers is None or batch.pack_boundaries is None:
            raise ValueError("the batch has no pack numbers; log batches of a PackedLoader")
        if len(losses) != batch.num_segments:
            raise ValueError(
                f"{len(losses)} losses were given for {batch.num_segments} segments; expected one "
                "for each, as segment_means gives them"
            )
        if isinstance(losses, np.ndarray) or losses.device.type == "cpu":
            of_losses = (
                losses if isinstance(losses, np.ndarray) else losses.detach().float().numpy()
            )
            ends, bounds, packs = (np.asarray(getattr(batch, name)) for name in _OF_PACKS)
            self._write(step, packs, np.searchsorted(ends, bounds), of_losses)
            return
        self._later(step, batch, losses.detach())

    def _later(self, step: int, batch: PackedBatch, losses: Tensor) -> None:
        """Copy what a record needs from the GPU, without waiting for it."""
        import torch

        device: Any = losses.device
        ends, bounds, packs = (
            torch.as_tensor(getattr(batch, name)).to(device, non_blocking=True)
            for name in _OF_PACKS
        )
        parts = [packs, torch.searchsorted(ends, bounds), losses]
        joined = torch.cat([part.double() for part in parts])  # one copy of exact numbers
        copy = torch.empty(len(joined), dtype=torch.float64, pin_memory=True)
        copy.copy_(joined, non_blocking=True)
        cuda: Any = torch.cuda
        event = cuda.Event()
        event.record(cuda.current_stream(device))
        self._late.append((step, len(packs), copy, event))
        while self._late and (len(self._late) > _LATE or self._late[0][3].query()):
            self._write_late()

    def _write_late(self) -> None:
        step, packs, copy, event = self._late.popleft()
        event.synchronize()
        values = copy.numpy()
        numbers, first = values[:packs], values[packs : 2 * packs + 1].astype(np.int64)
        self._write(step, numbers.astype(np.int64), first, values[2 * packs + 1 :])

    def _write(
        self, step: int, packs: NDArray[Any], first: NDArray[Any], losses: NDArray[Any]
    ) -> None:
        """first: [packs + 1], first segment of each pack, and the end."""
        self._file.write(record_of(step, packs, np.diff(first), losses[: first[-1]]))

    def close(self) -> None:
        """Write the losses that a GPU still computes, and close the file."""
        while self._late:
            self._write_late()
        self._file.close()
