"""Batches of packs in a shuffled, resumable order, with the same number of steps on every rank.

No worker processes, and no communication between ranks: the packs of a rank at a step follow from
arithmetic, so every rank has the same number of steps. A thread makes the next batches while the
model trains.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args

from ..schemas.files import FormatError
from .batch import PackedBatch
from .fill import PAIR_COLUMNS, BatchMaker, LabelChoice, Sides
from .loss import Mode, check_mode
from .order import EpochOrder, PackSteps, TokenSteps
from .shape import BatchShape, batch_size
from .shards import PackedShards

# Handing batches to another thread costs about 50 microseconds, so several are handed together.
_TOKENS_AT_ONCE = 1 << 16
_QUICK = 1e-3  # seconds that a reader is away from so many tokens
Steps = PackSteps | TokenSteps
_STATE = ("fingerprint", "seed", "epoch", "shuffle_window", "packs")


class PackedLoader:
    """Iterable over the batches of one rank for one epoch.

    `for batch in loader`. Each batch is a PackedBatch. `loader[step]` is the batch at a step from
    the position of a loaded state on, so the loader is also a dataset for torch's
    DataLoader(loader, batch_size=None).

    shards: packs to read, or the path of an output, or a list of outputs one after another.
    packs_per_batch: packs in a batch of one rank, or `shape`, which has all that decides the shape
    of batches. seed: decides the order; the epoch is that of `set_epoch`. rank, world_size: this
    rank's share of each global batch; by default 0 of 1, which is refused where the process is one
    of several (a group of torch.distributed, or WORLD_SIZE of torchrun): pass rank=0, world_size=1
    if each shall read all. shuffle_window: packs are mixed in windows of so many shuffled shards; 0
    keeps stored order. labels: "hf" (unshifted, the model shifts), "shifted" (of the next token) or
    "none"; no label crosses a segment boundary. loss_weights: mode of the weights to add to each
    batch, see `loss_weights`. columns: further columns to read into `batch.extra`. sides: of shards
    with preference pairs, which None refuses. "both" also adds pair_ids and pair_sides to
    `batch.extra`, for `pair_log_probs`; "chosen" leaves the rejected sides out, so a batch has
    fewer tokens. remainder: "drop" the last packs if they fill no batch on all ranks, or "fill" the
    batch with packs without loss, which the ranks share. prefetch: batches that a thread makes
    ahead, at least; 0 for none. pin_memory: batches of tensors in page-locked memory, so that
    batch.to("cuda", non_blocking=True) overlaps with other work.

    Iteration starts at the beginning of the epoch, or, once, at the position of a loaded state.
    ValueError for settings that cannot work.
    """

    def __init__(
        self,
        shards: PackedShards | str | Path | Sequence[str | Path],
        packs_per_batch: int | None = None,
        *,
        shape: BatchShape | None = None,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle_window: int = 4,
        labels: LabelChoice = "hf",
        loss_weights: Mode | None = None,
        columns: Sequence[str] = (),
        sides: Sides | None = None,
        remainder: Literal["drop", "fill"] = "drop",
        prefetch: int = 2,
        pin_memory: bool = False,
    ) -> None:
        if shape is not None and packs_per_batch is not None:
            raise ValueError("packs_per_batch and shape were passed; shape has a packs_per_batch")
        self.shape = shape or BatchShape(packs_per_batch=packs_per_batch)
        self.shards = shards if isinstance(shards, PackedShards) else PackedShards(shards)
        self._forgotten = rank is None or world_size is None
        self.rank, self.world_size = rank or 0, 1 if world_size is None else world_size
        self.seed, self.epoch, self.remainder, self.prefetch = seed, 0, remainder, prefetch
        self._window, self._pin_memory = shuffle_window, pin_memory
        self._check(labels, loss_weights, sides)
        if sides == "both":
            columns = [*dict.fromkeys((*columns, *PAIR_COLUMNS))]
        for name in columns:
            _check_choice("a name of columns", name, self.shards.names("token", "segment"))
        self._size = batch_size(self.shards, self.shape)
        self._maker = BatchMaker(
            self.shards, self._size, labels, loss_weights, tuple(columns), sides
        )
        self._start = self._place = 0
        self._made: tuple[tuple[int, ...], EpochOrder] | None = None
        self._cut: tuple[tuple[int, ...], Steps] | None = None
        if not len(self):
            raise ValueError(
                f"{self.shards.path} has {len(self.shards)} packs, too few for one batch on each "
                f"of {self.world_size} ranks; choose remainder='fill' or a smaller batch"
            )

    def _check(self, labels: str, weights: Mode | None, sides: str | None) -> None:
        self._check_group()
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank is {self.rank} of world_size {self.world_size}; expected 0 or more, and less"
            )
        _check_choice("labels", labels, get_args(LabelChoice))
        _check_choice("remainder", self.remainder, ("drop", "fill"))
        _check_choice("sides", sides, (*get_args(Sides), None))
        if weights is not None:
            check_mode(weights, "loss_weights")
            if labels == "none":
                raise ValueError("loss_weights need labels; choose labels='hf' or 'shifted'")
        if labels == "hf" and self.shape.cp_size > 1:
            raise ValueError(
                "labels='hf' loses a label at the end of each slice with cp_size > 1; choose "
                "'shifted'"
            )
        if ("pair_sides" in self.shards.columns) != (sides is not None):
            raise ValueError(
                f"{self.shards.path} has {'no ' * (sides is not None)}preference pairs, and sides "
                f"is {sides!r}; pass sides='both' for pair_log_probs, or sides='chosen' to train "
                "on the chosen sides alone, with pairs, and None without"
            )

    def _check_group(self) -> None:
        """Raise ValueError if this is one of several processes and rank or world size is missing.

        Called again when batches are asked for: the loader may be older than the process group.
        """
        if self._forgotten and (processes := _processes()) > 1:
            raise ValueError(
                f"the training has {processes} processes, which would all train on the same packs; "
                "pass rank and world_size, or rank=0, world_size=1 if each shall read all packs"
            )

    def __repr__(self) -> str:
        size = f"{'' if self._size.fixed else 'at most '}{self._size.tokens:,}"
        return (
            f"PackedLoader({self.shards!r}, {len(self):,} steps of {size} tokens, epoch "
            f"{self.epoch}, rank {self.rank} of {self.world_size})"
        )

    def __len__(self) -> int:
        """Steps from the beginning of the epoch, or from a loaded state on; equal on all ranks."""
        return len(self._steps(self._start))

    def __getitem__(self, step: int) -> PackedBatch:
        """Batch of this rank at a step; iteration is not affected. IndexError after the epoch."""
        self._check_group()
        steps = self._steps(self._start)
        if not 0 <= step < len(steps):
            raise IndexError(f"step {step} is out of range; the epoch has {len(steps)} steps")
        return self._make(self._order(), steps, step)

    def __iter__(self) -> Iterator[PackedBatch]:
        self._check_group()
        self._place, self._start = self._start, 0
        return self._iterate(self._order(), self._steps(self._place))

    def _iterate(self, order: EpochOrder, steps: Steps) -> Iterator[PackedBatch]:
        each = max(min(_TOKENS_AT_ONCE // self._size.tokens, 64), 1)

        def batches(first: int) -> Iterator[PackedBatch]:
            for step in range(first, min(first + each, len(steps))):
                yield self._make(order, steps, step)

        made = _ahead(batches, range(0, len(steps), each), -(-self.prefetch // each))
        for step, batch in enumerate(made):
            self._place = steps.end(step)
            yield batch

    def _make(self, order: EpochOrder, steps: Steps, step: int) -> PackedBatch:
        """Batch of this rank at a step; places after the last pack are filler, pack -1."""
        places = steps.places(self.rank, step)
        packs = [order.pack_at(place) if place < order.packs else -1 for place in places]
        batch = self._maker.make(packs)
        return batch.pin_memory() if self._pin_memory else batch

    def set_epoch(self, epoch: int) -> None:
        """Make this the next epoch to iterate, from its beginning.

        A loaded state of the same epoch keeps its position.
        """
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}; expected 0 or more")
        if epoch != self.epoch:
            self.epoch, self._start, self._place = epoch, 0, 0

    def state_dict(self) -> dict[str, int]:
        """Position of the latest iteration: five integers.

        It counts batches that were yielded, not those made ahead, nor those of `loader[step]`,
        which a torch DataLoader takes.
        """
        values = (self.shards.fingerprint, self.seed, self.epoch, self._window, self._place)
        return dict(zip(_STATE, values, strict=True))

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume the global stream of `state` at the next iteration.

        World size and batch size may differ from those of the state. Seed, epoch and shuffling are
        taken from the state. FormatError if it is the state of another dataset or version.
        """
        if {*state} != {*_STATE}:
            raise FormatError(f"the state has the keys {[*state]}; expected {[*_STATE]}")
        if state["fingerprint"] != self.shards.fingerprint:
            raise FormatError(
                f"the state belongs to shards with fingerprint {state['fingerprint']:x}, and "
                f"{self.shards.path} has {self.shards.fingerprint:x}; resume from the shards that "
                "the state was saved with"
            )
        self.seed, self.epoch, self._window = state["seed"], state["epoch"], state["shuffle_window"]
        self._start = self._place = state["packs"]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_made": None, "_cut": None}

    def _order(self) -> EpochOrder:
        key = (self.seed, self.epoch, self._window)
        if self._made is None or self._made[0] != key:
            self._made = key, EpochOrder(self.shards, *key)
        return self._made[1]

    def _steps(self, start: int) -> Steps:
        """The steps of the epoch from a place on."""
        ranks, fill = self.world_size, self.remainder == "fill"
        if self.shape.max_tokens is None:
            each = self.shape.packs_per_batch or 1
            return PackSteps(len(self.shards), each, start, ranks, fill)
        key = (self.seed, self.epoch, self._window, start)
        if self._cut is None or self._cut[0] != key:
            tokens = self.shards.pack_tokens()[self._order().every()]
            budget = self.shape.max_tokens // self._size.multiple * self._size.multiple
            self._cut = key, TokenSteps(tokens, budget, start, ranks, fill)
        return self._cut[1]


def _ahead(
    function: Callable[[int], Iterable[PackedBatch]], items: Iterable[int], depth: int
) -> Iterator[PackedBatch]:
    """Batches of each item; a thread makes those of `depth` items ahead.

    A reader that comes back at once makes them itself: it would only wait for the thread. Closing
    the iterator stops the thread.
    """
    pool, is_ending = ThreadPoolExecutor(1, "packprep-prefetch"), sys.is_finalizing
    made, is_slow = deque[Callable[[], Iterable[PackedBatch]]](), False
    try:
        for item in items:
            ask = pool.submit(list, function(item)).result if is_slow else partial(function, item)
            made.append(ask)
            if len(made) <= depth * is_slow:
                continue
            away = 0.0
            for batch in made.popleft()():
                left = perf_counter()
                yield batch
                away += perf_counter() - left
            is_slow = away > _QUICK
        for rest in made:
            yield from rest()
    finally:
        if not is_ending():  # else modules are gone, and its thread has ended
            pool.shutdown(wait=False, cancel_futures=True)


def _check_choice(name: str, value: Any, allowed: Sequence[Any]) -> None:
    if value not in allowed:
        names = ", ".join(map(str, allowed))
        raise ValueError(f"{name} is {value!r}; expected one of {names}")


def _processes() -> int:
    """Processes of the training that this one belongs to.

    Of the process group; before there is one, of the variables that torchrun sets.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if "RANK" in os.environ and size.isdecimal() else 1
