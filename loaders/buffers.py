"""Memory of batches, reused once a batch is no longer referenced: no page faults, no allocation.

A block is lent as a numpy array. numpy keeps that array alive while a view of it lives, and so does
a torch tensor made from one. The block returns to the pool when the last of them is gone, in any
thread.
"""

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.errors import FormatError


def import_torch() -> Any:
    """Return torch; ModuleNotFoundError says how to install it."""
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name not in (None, "torch"):
            raise
        raise ModuleNotFoundError(
            "batches of tensors need torch, which is not installed; pip install packprep[torch]",
            name="torch",
        ) from None
    return torch


@dataclass(eq=False)
class Block:
    """Memory of one batch, and the copies from it that may still run.

    memory: the buffer of an array or tensor. copies: CUDA events of copies from it.
    """

    memory: Any
    copies: list[Any] = field(default_factory=list)


class BlockPool:
    """Blocks of `values` int64.

    keep: free blocks kept at most. pinned: page-locked, for copies that overlap with work.

    `lend` never waits for a block to return: if all are in use it makes a new one, so list(loader)
    is safe.
    """

    def __init__(self, values: int, keep: int, pinned: bool = False) -> None:
        self._values = values
        self._pinned = pinned
        self._free: deque[Block] = deque(maxlen=keep)
        # By the id of the weak reference, because arrays have no hash.
        self._lent: dict[int, tuple[weakref.ref[NDArray[np.int64]], Block]] = {}

    def lend(self) -> tuple[NDArray[np.int64], Block]:
        """An array of uninitialised int64 [values] that no living array shares, and its block."""
        try:
            block = self._free.pop()
        except IndexError:
            block = self._new()
        for copy in block.copies:
            copy.synchronize()
        block.copies.clear()
        array = np.frombuffer(block.memory, np.int64)
        reference = weakref.ref(array, self._return)
        self._lent[id(reference)] = reference, block
        return array, block

    def _return(self, reference: weakref.ref[NDArray[np.int64]]) -> None:
        self._free.append(self._lent.pop(id(reference))[1])

    def _new(self) -> Block:
        try:
            return self._make()
        except MemoryError:  # a manifest may claim max_length 2^31 for packs of 8 tokens
            raise FormatError(
                f"a batch of packs as long as the manifest's max_length takes {8 * self._values:,} "
                "bytes, more than the free memory; use fewer packs_per_batch, or restore the "
                "manifest"
            ) from None

    def _make(self) -> Block:
        if not self._pinned:
            return Block(np.empty(self._values, np.int64).data)
        torch = import_torch()
        return Block(torch.empty(self._values, dtype=torch.int64, pin_memory=True).numpy().data)
