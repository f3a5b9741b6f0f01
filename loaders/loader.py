"""Batches of packs in a shuffled, resumable order, with the same number of steps on every rank.

No worker processes, and no communication between ranks: the packs of a rank at a step follow from
arithmetic, so every rank has the same number of steps. A thread makes the next batches while the
model trains.
"""

import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, count, islice
from pathlib import Path
from textwrap import fill
from typing import Any, Literal, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from packprep.schemas.errors import FormatError
from packprep.schemas.sources import Sources

from .ahead import Readahead, prefetched
from .batch import PackedBatch
from .buffers import BlockPool, import_torch
from .fill import BatchMaker, ChosenSides, LabelChoice
from .loss import Mode, check_mode
from .order import CutSchedule, EpochOrder, Schedule, SequenceSchedule, TokenSchedule
from .shape import (
    PAIR_COLUMNS,
    BatchShape,
    ShapeSettings,
    Sides,
    batch_size,
    check_sides,
    check_tree_settings,
    column_kind,
    phase_batches,
)
from .shards import PackedShards, StoredPlan
from .trees import refuse_trees

STATE_VERSION = 1
# Looking up the packs of one step costs as much as looking up those of many.
_STEPS_AT_ONCE = 64


class PackedLoader:
    """Iterable over the batches of one rank for one epoch.

    `for batch in loader`, or `loader[step]` by number. Each batch is a PackedBatch.

    shards: packs to read, or the path of an output with one split.
    packs_per_batch: packs in a batch of one rank; in later phases as many as have the tokens of a
    batch of the first one. max_tokens: instead of it, tokens of a batch of one rank: each has as
    many of the next packs as fit, on every rank the same number of batches. The number of steps of
    an epoch then depends on its order. Padding counts. sequences_per_step: instead of both,
    sequences of a step over all ranks, on average: each step ends at the pack with which the
    sequences since the first step are nearest to a multiple of it, or, where packs hold too many,
    as soon after as every rank has a pack. Every rank has the same number of packs in a step. After
    a state of another number of ranks, sequences are counted from its place. A sequence is a
    segment that is not filler, a row of a tree, or a preference pair. `batch.micro_batches()` cuts
    a batch. seed, epoch: decide the order. shuffle: mix packs in windows of `shuffle_window`
    shuffled shards. rank, world_size: this rank's share of each global batch; by default 0 of 1,
    which is refused where the process is one of several (a group of torch.distributed, or
    WORLD_SIZE of torchrun): pass rank=0, world_size=1 if each shall read all. labels: "hf"
    (unshifted, the model shifts), "shifted" (of the next token) or "none"; no label crosses a
    segment boundary. loss_weights: mode of the weights to add to each batch, see
    `packprep.loaders.loss_weights`. columns: further columns to read into `batch.extra`. trees:
    True for shards with trees (--share-prefixes), whose batches have `segment_parents`; only code
    that knows trees may read them. sides: of shards with preference pairs, which None refuses.
    "both" also adds pair_ids and pair_sides to `batch.extra`, for `pair_log_probs`; "chosen" leaves
    the rejected sides out, so a batch has fewer tokens.

    shape: packs_per_batch, max_tokens, sequences_per_step and the five below as one value; a
    keyword wins over its field. pad_to: tokens of every batch. pad_multiple: tokens of every batch
    are a multiple of it.
    max_segments: segments of every batch; with it shapes never change (pad_to is then
    packs_per_batch * max_length, or max_tokens, by default), for torch.compile and CUDA graphs.
    Padding is added as extra segments at the end, without loss. cp_size: number of context-parallel
    ranks that slice each batch with `context_slice`; cp_layout: its layout there.

    skip_rows: file of rows to leave out, a SOURCE:ROW a line, as `packprep spike --rows` writes it:
    their segments have no labels, and weights of 0, so batches stay the same otherwise.

    remainder: "drop" the last packs if they fill no batch on all ranks, or "fill" the batch with
    packs without loss. prefetch: batches that a thread makes ahead; 0 for none. The memory of a
    batch is reused once no array of it is referenced, so it is safe to keep batches. pin_memory:
    use page-locked memory, so that batch.to("cuda", non_blocking=True) overlaps with other work.

    Iteration starts at the beginning of the epoch, or, once, at the position of a loaded state. So
    does `dataloader`, which is torch's DataLoader over this loader. The loader is also a map-style
    dataset for torchdata's StatefulDataLoader(loader, batch_size=None), which keeps its own state.
    ValueError for settings that cannot work.
    """

    def __init__(
        self,
        shards: PackedShards | str | Path,
        packs_per_batch: int | None = None,
        *,
        shape: BatchShape | None = None,
        seed: int = 0,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = True,
        labels: LabelChoice = "hf",
        prefetch: int = 2,
        remainder: Literal["drop", "fill"] = "drop",
        loss_weights: Mode | None = None,
        columns: Sequence[str] = (),
        shuffle_window: int = 4,
        pin_memory: bool = False,
        trees: bool = False,
        sides: Sides | None = None,
        skip_rows: str | Path | None = None,
        **settings: Unpack[ShapeSettings],
    ) -> None:
        if isinstance(shards, str | Path):
            shards = PackedShards(shards)
        self.shards = shards
        shape = replace(shape or BatchShape(), **settings)
        self.packs_per_batch = shape.packs_per_batch if packs_per_batch is None else packs_per_batch
        self._forgotten = rank is None or world_size is None
        self.rank, self.world_size = rank or 0, 1 if world_size is None else world_size
        self.max_tokens, self.sequences_per_step = shape.max_tokens, shape.sequences_per_step
        self.seed, self.epoch = seed, epoch
        self.remainder, self.prefetch = remainder, prefetch
        self._window = shuffle_window if shuffle else 0
        self._labels, self._weights, self._pin_memory = labels, loss_weights, pin_memory
        check_sides(shards, sides)
        self._sides = sides
        if sides == "both" and not trees:
            columns = [*dict.fromkeys((*columns, *PAIR_COLUMNS))]
        self._columns = {name: column_kind(shards, name) for name in columns}
        self._skipped = None if skip_rows is None else _skipped_documents(shards, Path(skip_rows))
        self._check()
        check_tree_settings(shards, trees, labels, shape.cp_size)
        phases = max(len(shards.phases), 1)
        packs = self.packs_per_batch
        self._batch_sizes = phase_batches(shards, packs) if packs else [1] * phases
        lengths = [phase.max_length for phase in shards.phases] or [shards.max_length]
        self._size_of = partial(batch_size, shards, shape, labels=labels)
        self._shapes = [
            self._size_of(length, packs)
            for length, packs in zip(lengths, self._batch_sizes, strict=True)
        ]
        self._order: EpochOrder | None = None
        self._cut: tuple[int, CutSchedule] | None = None  # by its start
        self._check_steps()
        self._phase = 0
        self._start = self._handed_out = 0
        self._by_number = False
        self._maker: tuple[tuple[int, int], BatchMaker] | None = None  # by phase and size

    def _check(self) -> None:
        self._check_group()
        sizes = [self.packs_per_batch, self.max_tokens, self.sequences_per_step]
        if sizes.count(None) != 2:
            raise ValueError(
                f"packs_per_batch is {sizes[0]}, max_tokens {sizes[1]} and sequences_per_step "
                f"{sizes[2]}; pass one of them"
            )
        least = {"packs_per_batch": 1, "max_tokens": 1, "world_size": 1, "prefetch": 0, "epoch": 0}
        for name, low in least.items():
            if (value := getattr(self, name)) is not None and value < low:
                raise ValueError(f"{name} is {getattr(self, name)}; expected {low} or more")
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank is {self.rank}; expected 0 to {self.world_size - 1}, world_size - 1"
            )
        choices = {
            "labels": (self._labels, get_args(LabelChoice)),
            "remainder": (self.remainder, ("drop", "fill")),
        }
        for name, (value, allowed) in choices.items():
            if value not in allowed:
                raise ValueError(
                    f"{name} is {value!r}; expected one of {', '.join(map(str, allowed))}"
                )
        if self._weights is not None:
            check_mode(self._weights, "loss_weights")
        self.shards.check_window(self._window)
        if self._skipped is not None and self._labels == "none":
            raise ValueError("skip_rows needs labels to leave out; choose labels='hf' or 'shifted'")
        if self._weights is not None and self._labels == "none":
            raise ValueError("loss_weights need labels; choose labels='hf' or 'shifted'")

    def _check_group(self) -> None:
        """Raise ValueError if this is one of several processes and rank or world size is missing.

        Called again when batches are asked for: the loader may be older than the process group.
        """
        if self._forgotten and (processes := _processes()) > 1:
            raise ValueError(
                f"the training has {processes} processes and PackedLoader has no rank and "
                "world_size, so each would train on the same packs; pass rank and world_size, such "
                "as torch.distributed.get_rank() and get_world_size(), or rank=0, world_size=1 if "
                "each shall read all packs"
            )

    def _check_steps(self) -> None:
        """Check all epochs that are packed, so that none fails after hours of training."""
        for plan in self.shards.plans if self.packs_per_batch is not None else [None]:
            for run in self._schedule(0, plan).runs:
                if run.steps == 0:
                    size = f"batch of {run.batch or f'{self.max_tokens} tokens'} on each of"
                    if self.sequences_per_step is not None:
                        size = f"step of {self.sequences_per_step} sequences on"
                    phase = f"phase {run.phase + 1} of " if self.shards.phases else ""
                    raise ValueError(
                        f"{phase}{self.shards.path} has {run.end - run.first} packs, too few for "
                        f"one {size} {self.world_size} ranks; choose remainder='fill' or a smaller "
                        "batch"
                    )

    def __repr__(self) -> str:
        """Settings on a few lines, without those that have no effect."""
        shape = max(self._shapes, key=lambda each: each.tokens)
        if isinstance(schedule := self._schedule(0), SequenceSchedule):
            shape = self._size_of(self.shards.max_length, schedule.largest)
        kept = {
            "packs_per_batch": self.packs_per_batch,
            "max_tokens": self.max_tokens,
            "sequences_per_step": self.sequences_per_step,
            "seed": self.seed,
            "epoch": self.epoch,
            "rank": self.rank,
            "world_size": self.world_size,
            "shuffle": None if self._window else False,
            "shuffle_window": self._window or None,
            "labels": self._labels,
            "loss_weights": self._weights,
            "columns": list(self._columns) or None,
            "sides": self._sides,
            "skip_rows": None if self._skipped is None else len(self._skipped),
            "max_segments": shape.max_segments,
            "pad_multiple": shape.multiple if shape.multiple > 1 else None,
            "remainder": self.remainder,
            "prefetch": self.prefetch,
            "pin_memory": self._pin_memory or None,
        }
        settings = ", ".join(
            f"{name}={value!r}" for name, value in kept.items() if value is not None
        )
        steps = "1 step" if len(self) == 1 else f"{len(self):,} steps"
        size = f"{'' if shape.fixed else 'at most '}{shape.tokens:,}"
        text = f"PackedLoader({self.shards!r}, {steps} of {size} tokens, {settings})"
        return fill(
            text, 88, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )

    def __len__(self) -> int:
        """Steps of this epoch, the same on every rank.

        Epochs that are packed again may differ by a few steps.
        """
        return len(self._schedule(0))

    def __getitem__(self, step: int | list[int]) -> PackedBatch:
        """Batch of this rank at `step` of the epoch, independent of iteration.

        A list of pack numbers gives the batch of these packs.

        IndexError outside the epoch. ValueError if step 0 is the first after load_state_dict: a
        DataLoader made by hand starts there, and would train on the first part of the epoch again.
        """
        if isinstance(step, list):
            return self._make(step)
        self._check_group()
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} is out of range; the epoch has {len(self)} steps")
        if step == 0 and self._start and not self._by_number:
            raise ValueError(
                f"step 0 was read and the loaded state is at pack {self._start}; iterate the "
                "loader or loader.dataloader(...), which resume there, and not DataLoader(loader, "
                "batch_size=None)"
            )
        self._by_number = (
            True  # torchdata's StatefulDataLoader, which resumes at a later step by itself
        )
        return self._make(self._packs(self._schedule(0), step, step + 1)[0])

    def __iter__(self) -> Iterator[PackedBatch]:
        start = self._take_start()
        batches = self._batches(start)
        if self.prefetch:
            return prefetched(batches, self.prefetch, partial(self._count, self._schedule(start)))
        return self._counted(batches, start)

    @property
    def phase(self) -> int:
        """Phase of the latest batch, from 0; before the first batch, that of the next one."""
        return self._phase

    def dataloader(self, **options: Any) -> Any:
        """torch's DataLoader over this loader, for a collate_fn or worker processes.

        The same batches, in the same order.

        options: options of DataLoader, except batch_size, shuffle and samplers. An iteration
        resumes at a loaded state and is counted by this loader's `state_dict`, as an iteration of
        the loader itself, with any number of workers.
        """
        self._check_group()
        import_torch()
        from torch.utils.data import DataLoader

        loader: Any = self

        class Counted(DataLoader[PackedBatch]):
            def __iter__(self) -> Any:
                batches = super().__iter__()  # reads the sampler, with workers twice
                return loader._counted(batches, loader._take_start())

        steps = _Steps(self, bool(options.get("num_workers")))
        return Counted(loader, batch_size=None, sampler=steps, **options)

    def set_epoch(self, epoch: int) -> None:
        """Make this the next epoch to iterate, from its beginning.

        A loaded state of the same epoch keeps its position.
        """
        if epoch != self.epoch:
            self.epoch, self._start, self._handed_out = epoch, 0, 0
            self._order = self._cut = None
            self._phase = 0
            self._check()

    def state_dict(self) -> dict[str, int]:
        """Position of the latest iteration: six integers.

        It counts batches that were yielded, not those made ahead.
        """
        return {
            "version": STATE_VERSION,
            "fingerprint": self.shards.fingerprint,
            "seed": self.seed,
            "epoch": self.epoch,
            "shuffle_window": self._window,
            "packs": self._handed_out,
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Resume the global stream of `state` at the next iteration.

        World size and batch size may differ from those of the state. Seed, epoch and shuffling are
        taken from the state. FormatError if it is the state of another dataset or version.
        """
        if state.get("version") != STATE_VERSION:
            raise FormatError(
                f"the loader's state has version {state.get('version')}; expected {STATE_VERSION}"
            )
        if state["fingerprint"] != self.shards.fingerprint:
            raise FormatError(
                f"the loader's state belongs to shards with fingerprint {state['fingerprint']:x}; "
                f"{self.shards.path} has {self.shards.fingerprint:x}; resume from the shards that "
                "the state was saved with"
            )
        self.seed, self.epoch, self._window = state["seed"], state["epoch"], state["shuffle_window"]
        self.shards.check_window(self._window)
        self._order = self._cut = None
        self._start = self._handed_out = state["packs"]
        self._phase = self._phase_after(self._start)
        self._by_number = False

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_order": None, "_maker": None, "_cut": None}

    @property
    def _plan(self) -> StoredPlan:
        return self.shards.plan(self.epoch)

    def _schedule(self, start: int, plan: StoredPlan | None = None) -> Schedule:
        """The steps of an epoch from a place on; plan: of another epoch than the current one."""
        packs = [phase.packs for phase in self.shards.phases] or [(plan or self._plan).packs]
        if self.packs_per_batch is None:
            return self._cut_schedule(start, packs)
        return Schedule(
            [*zip(packs, self._batch_sizes, strict=True)],
            start=start,
            world_size=self.world_size,
            fill=self.remainder == "fill",
        )

    def _cut_schedule(self, start: int, phases: list[int]) -> CutSchedule:
        if self._cut is None or self._cut[0] != start:
            order = self._epoch_order().every() - self._plan.first_pack
            fill = self.remainder == "fill"
            rest: dict[str, Any] = {"start": start, "world_size": self.world_size, "fill": fill}
            if self.sequences_per_step is not None:
                counts = self.shards.pack_sequences(self._plan)[order]
                wanted = self.sequences_per_step
                self._cut = start, SequenceSchedule(counts, phases, wanted, **rest)
            else:
                tokens, multiple = (
                    self.shards.pack_tokens(self._plan)[order],
                    self._shapes[0].multiple,
                )
                budget = (self.max_tokens or 0) // multiple * multiple
                self._cut = start, TokenSchedule(tokens, phases, budget, **rest)
        return self._cut[1]

    def _phase_after(self, start: int) -> int:
        """Phase of the first batch from a place on."""
        runs = self._schedule(start).runs
        return next((run.phase for run in runs if run.steps), len(runs) - 1)

    def _epoch_order(self) -> EpochOrder:
        if self._order is None:
            plan = self._plan
            self._order = EpochOrder(
                plan.packs_per_shard,
                seed=self.seed,
                epoch=self.epoch,
                window=self._window,
                first_pack=plan.first_pack,
                phases=[phase.shards for phase in self.shards.phases],
            )
        return self._order

    def _make(self, packs: list[int]) -> PackedBatch:
        """The batch of these packs, all of one phase. Pack -1 - p is a filler pack of phase p."""
        phase = self._phase_of(packs)
        shape = self._shapes[phase]
        if self.sequences_per_step is not None:  # as large as the largest batch until now
            room = self._size_of(shape.max_length, len(packs))
            shape = self._shapes[phase] = max(shape, room, key=lambda each: each.tokens)
        if self._maker is None or self._maker[0] != (phase, shape.tokens):
            # Free blocks that are kept: one in use, one just released, and those made ahead.
            pool = BlockPool(BatchMaker.values(shape), self.prefetch + 2, self._pin_memory)
            shards = ChosenSides(self.shards) if self._sides == "chosen" else self.shards
            self._maker = (
                (phase, shape.tokens),
                BatchMaker(
                    shards, shape, self._labels, self._weights, self._columns, pool, self._skipped
                ),
            )
        return self._maker[1].make([max(pack, -1) for pack in packs])

    def _phase_of(self, packs: list[int]) -> int:
        if len(self._shapes) == 1:
            return 0
        highest = max(packs)
        if highest < 0:
            return -1 - highest
        ends = list(accumulate(phase.packs for phase in self.shards.phases))
        return bisect_right(ends, highest)

    def _packs(self, schedule: Schedule, first: int, last: int) -> list[list[int]]:
        """Pack numbers of this rank's batches at steps first to last - 1.

        -1 - p after the last pack of phase p.
        """
        order, batches = self._epoch_order(), list[list[int]]()
        for run, places in schedule.places(self.rank, first, last):
            flat = places.ravel()
            packs = order.take(flat[flat < run.end])
            packs += [-1 - run.phase] * (len(flat) - len(packs))
            size = places.shape[1]
            batches += [packs[at : at + size] for at in range(0, len(packs), size)]
        return batches

    def _take_start(self) -> int:
        """Return the position of a loaded state once, then 0."""
        self._check_group()
        start, self._start = self._start, 0
        self._handed_out = start
        self._phase = self._phase_after(start)
        return start

    def _packs_from(self, start: int, in_workers: bool = False) -> Iterator[list[int]]:
        """Pack numbers of this rank's batches from a position on, with their shards read ahead."""
        schedule = self._schedule(start)
        steps = len(schedule)
        order, first_shard = self._epoch_order(), self._plan.first_shard
        readahead = Readahead(self.shards, order, first_shard, in_workers)
        for first in range(0, steps, _STEPS_AT_ONCE):
            readahead.advance(schedule.place(first))
            yield from self._packs(schedule, first, min(first + _STEPS_AT_ONCE, steps))

    def _batches(self, start: int) -> Iterator[PackedBatch]:
        return map(self._make, self._packs_from(start))

    def _count(self, schedule: Schedule, step: int) -> None:
        self._handed_out, self._phase = schedule.end(step), schedule.at(step)[0].phase

    def _counted(self, batches: Iterator[Any], start: int) -> Iterator[Any]:
        schedule = self._schedule(start)
        for step in count():
            box = [*islice(batches, 1)]
            if not box:
                return
            self._count(schedule, step)
            yield box.pop()  # keep no reference: the reader decides how long the batch lives


def _processes() -> int:
    """Processes of the training that this one belongs to.

    Of the process group; before there is one, of the variables that torchrun sets.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if "RANK" in os.environ and size.isdecimal() else 1


def _skipped_documents(shards: PackedShards, rows: Path) -> NDArray[np.int64]:
    """Ids of the documents of a list of rows; ValueError where they cannot be found."""
    refuse_trees(shards.has_trees, "skip_rows")
    if "document_ids" not in shards.column_kinds:
        raise ValueError(
            f"{shards.path} has no document_ids, which skip_rows needs; build with that column"
        )
    return Sources(shards.manifest).listed_documents(rows)


class _Steps:
    """Sampler of `dataloader`: a list of pack numbers per step, so that workers need no order."""

    def __init__(self, loader: PackedLoader, in_workers: bool) -> None:
        self._loader, self._in_workers = loader, in_workers

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        return self._loader._packs_from(self._loader._start, self._in_workers)
