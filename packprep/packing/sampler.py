"""Packing during training, for a map-style dataset: batches of packs of document indices.

Documents are packed again every epoch. For data packed once, offline, read the shards with
packprep.loaders instead.
"""

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..schemas.cost import ATTENTION_COST, Cost
from ..support.errors import ConfigError
from ..support.hashing import Purpose, stream
from .api import pack_lengths
from .kernels.common import shuffle
from .kernels.deal import PackOrder
from .plan import PackPlan


@dataclass(eq=False, repr=False)
class MultipackSampler:
    """Batches for one rank: a `batch_sampler` for a DataLoader.

    The collate function must join the documents of a pack.

    Each item is one batch: a list of batch_size packs, each a list of indices into `lengths`.
    Batches depend only on the arguments and the epoch, so all ranks agree on the number of batches
    without communication.

    lengths: integers [documents], tokens, each in 1..max_length.
    max_length: tokens per pack.
    batch_size: packs per batch and rank.
    strategy: see pack_lengths; documents are taken in a new seeded order every epoch.
    group_size: pack this many documents at a time, drawn at random, or all (None).
    sequential: first fit in input order, no shuffling, rank r takes every world_size-th pack.
    drop_last: drop packs that do not fill a batch for every rank; False repeats the first packs of
    the epoch instead.
    order, balance_ranks, cost, num_packs: see pack_lengths; order is by default shuffle, or input
    if sequential, and balance_ranks is by default world_size.

    With order="balanced", ranks get packs of nearly the same cost in every step and wait little for
    each other; with strategy="balanced" as well, they wait least. Iterating again after a break
    continues; set_epoch starts over. Raises ConfigError.

    >>> sampler = MultipackSampler([5, 3, 4, 1, 2, 6], max_length=8, batch_size=1, sequential=True)
    >>> list(sampler)
    [[[0, 1]], [[2, 3, 4]], [[5]]]
    """

    lengths: ArrayLike
    max_length: int
    batch_size: int = 1
    _: KW_ONLY
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    strategy: str = "stream"
    group_size: int | None = None
    max_segments_per_pack: int | None = None
    sequential: bool = False
    drop_last: bool = True
    order: PackOrder | None = None
    balance_ranks: int | None = None
    cost: Cost | tuple[float, float] = ATTENTION_COST
    num_packs: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "world_size", "group_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}, expected at least 1")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"rank is {self.rank}, expected 0 to {self.world_size - 1}, world_size - 1"
            )
        self.epoch = 0
        self._done = 0  # packs of this epoch already given out, all ranks together
        self._plans: dict[int, PackPlan] = {}

    @property
    def plan(self) -> PackPlan:
        """The packs of the current epoch, for all ranks, in order of use."""
        if self.epoch not in self._plans:
            self._plans = {self.epoch: self._pack()}
        return self._plans[self.epoch]

    def _pack(self) -> PackPlan:
        seed, groups = int(stream(self.seed, Purpose.EPOCH, self.epoch)), None
        documents = np.size(self.lengths)
        if not self.sequential and self.group_size is not None and self.group_size < documents:
            drawn = np.arange(documents, dtype=np.int32)
            shuffle(drawn, 0, documents, stream(seed, Purpose.EPOCH_GROUPS))
            groups = np.empty(documents, np.int64)
            groups[drawn] = np.arange(documents) // self.group_size
        return pack_lengths(
            self.lengths,
            self.max_length,
            "first_fit_input" if self.sequential else self.strategy,
            seed,
            order=self.order or ("input" if self.sequential else "shuffle"),
            shuffle_documents=not self.sequential,
            max_segments_per_pack=self.max_segments_per_pack,
            groups=groups,
            num_packs=self.num_packs,
            balance_ranks=self.world_size if self.balance_ranks is None else self.balance_ranks,
            cost=self.cost,
        )

    @property
    def efficiency(self) -> float:
        """Share of tokens in the batches of this epoch, padding not counted; all ranks, 0..1."""
        step = self.batch_size * self.world_size
        used = self._uses(0)
        filled = int(self.plan.fills[used].sum())
        packs = used.size if used.size >= step else 0
        return filled / (packs * self.max_length) if packs else 1.0

    def __len__(self) -> int:
        """Batches left for this rank in the current epoch; the same on every rank."""
        return self._uses(self._done).size // (self.batch_size * self.world_size)

    def _uses(self, first: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Packs used from pack `first` of the epoch on: a whole number of global batches."""
        step, packs = self.batch_size * self.world_size, self.plan.num_packs
        left = max(0, packs - first)
        if self.drop_last or packs == 0:
            return np.arange(first, first + left // step * step)
        return np.arange(first, first + -(-left // step) * step) % packs

    def __iter__(self) -> Iterator[list[list[int]]]:
        plan, step = self.plan, self.batch_size * self.world_size
        uses = self._uses(self._done)
        for start in range(0, uses.size, step):
            packs = uses[start + self.rank : start + step : self.world_size]
            self._done += step
            yield [plan.order[plan.offsets[p] : plan.offsets[p + 1]].tolist() for p in packs]
        self._done = 0

    def set_epoch(self, epoch: int) -> None:
        """Pack again for another epoch; the current epoch keeps its position."""
        if epoch < 0:
            raise ConfigError(f"epoch is {epoch}, expected at least 0")
        if epoch != self.epoch:
            self.epoch, self._done = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Position of this sampler: epoch, and packs given to all ranks.

        It can be loaded with another world size or batch size. A DataLoader with workers takes
        batches in advance; the position includes those that are not delivered yet.
        """
        return {"epoch": self.epoch, "packs": self._done, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a state_dict. Raises ConfigError if its seed is another one."""
        if state["seed"] != self.seed:
            raise ConfigError(
                f"the state was saved with seed {state['seed']} but this sampler has seed "
                f"{self.seed}"
            )
        self.epoch, self._done = int(state["epoch"]), int(state["packs"])
