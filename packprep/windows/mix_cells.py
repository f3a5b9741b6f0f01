"""Copies of each document in each phase of a mix; a mix without phases is one phase.

A cell is a source of the mix in one split, training first. Phases draw from the same cells, one
after another: a phase takes the documents with the fewest copies so far, so a document is repeated
only once all documents of its source that fit the phase are used. A phase does not depend on later
ones, if the numbers of its tokens do not.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.config.grammar.mix import Entry, targets
from packprep.config.pack_rules import MixRules, PackRules
from packprep.config.stages import Cutting
from packprep.support.arrays import Int64
from packprep.support.errors import InputError
from packprep.tokens.store import TokenFile
from packprep.windows.documents import Documents, held_out, read_documents
from packprep.windows.mix_draw import BUCKETS, Draw, buckets, finish_draw, hashes, place
from packprep.windows.phase_sizes import largest_total

Measure = Callable[[Documents, PackRules], Int64]
"""Tokens that each document will have in packs of these rules, [documents]; shares are of these."""

_Pools = dict[int, tuple[Int64, Int64]]  # see `mix_draw.place`


@dataclass(frozen=True, kw_only=True)
class MeasuredFile:
    """Documents of one token file.

    sizes: tokens in packs of each phase, [phases, documents]. cell: split * sources + source of the
    mix, [documents]. hashed: [documents].
    """

    documents: Documents
    sizes: Int64
    cell: Int64
    hashed: NDArray[np.uint64]


class Cells:
    """The draws of all phases.

    available, wanted: tokens of each cell in each phase. asked:
    training tokens of each phase. scarce: source that limits the size of a mix, or None;
    scarce_phase: the phase in which it does. total: tokens of all phases, if their shares are of
    the largest total.
    """

    def __init__(
        self,
        files: Sequence[TokenFile],
        directory: Path,
        entry_of_source: Sequence[int],
        rules: MixRules,
        measure: Measure,
    ) -> None:
        self._files, self._directory, self._rules = files, directory, rules
        self._measure = measure
        self.phases, self.entries = rules.phases, rules.entries
        self.entry_of_source = np.array(entry_of_source, np.int64)
        self.cells = len(self.entries) * (2 if rules.holdout else 1)
        self.scarce: Entry | None = None
        self.scarce_phase = 0
        self.total: int | None = None
        self.available: list[list[int]] = []
        self.wanted: list[list[int]] = []
        self.asked: list[int] = []
        self._draws: list[list[Draw]] = []
        if any(phase.tokens is None for phase in self.phases):
            self._find_total()
        for _ in rules.packs:
            self._draw()

    def read(self) -> Iterator[tuple[int, MeasuredFile]]:
        """Number and documents of each token file."""
        for number, file in enumerate(self._files):
            yield number, self.measured(read_documents(self._directory, [file]))

    def measured(self, documents: Documents) -> MeasuredFile:
        """The sizes, cells and hashes of documents."""
        validation = (
            held_out(documents, self._rules.holdout, self._rules.ordering.seed)
            if self._rules.holdout
            else np.zeros(len(documents), np.bool_)
        )
        sizes: dict[Cutting, Int64] = {}
        for each in self._rules.packs:
            if each.cutting not in sizes:
                sizes[each.cutting] = self._measure(documents, each)
        return MeasuredFile(
            documents=documents,
            sizes=np.stack([sizes[each.cutting] for each in self._rules.packs]),
            cell=validation * len(self.entries) + self.entry_of_source[documents.source],
            hashed=hashes(self._rules.ordering.seed, documents.id),
        )

    def copies(self, file: MeasuredFile) -> Int64:
        """Copies of each document in each phase that is drawn, [phases, documents].

        A document that has tokens in packs of no phase is taken once, by the first one.
        """
        taken = np.zeros((len(self._draws), len(file.cell)), np.int64)
        bucket, drawn = buckets(file.hashed), np.zeros(len(file.cell), np.int64)
        for number, draws in enumerate(self._draws):
            for cell in np.unique(file.cell).tolist():
                rows = file.cell == cell
                taken[number, rows] = draws[cell].copies(
                    file.documents.id[rows], bucket[rows], file.sizes[number, rows], drawn[rows]
                )
            drawn += taken[number]
        if len(taken):
            taken[0] += ~file.sizes.any(axis=0)
        return taken

    def _draw(self) -> None:
        """Draw the next phase."""
        pools = self._pools()
        number, cells = len(self._draws), range(self.cells)
        available = [sum(int(sizes.sum()) for sizes, _ in pools[cell].values()) for cell in cells]
        wanted = self._phase_targets(number, pools) if self.phases else self._targets(available)
        ends = [place(wanted[cell], pools[cell]) for cell in cells]
        candidates: list[list[Any]] = [[] for _ in cells]
        first, last, times = (
            np.array([getattr(end, name) for end in ends]) for name in ("first", "last", "times")
        )
        for _, file in self.read() if (first < last).any() else ():
            bucket, size = buckets(file.hashed), file.sizes[number]
            near = (bucket >= first[file.cell]) & (bucket < last[file.cell]) & (size > 0)
            near &= self._drawn(file) <= times[file.cell]
            for cell in np.unique(file.cell[near]).tolist():
                rows = near & (file.cell == cell)
                candidates[cell].append((file.hashed[rows], file.documents.id[rows], size[rows]))
        self._draws.append([finish_draw(*pair) for pair in zip(ends, candidates, strict=True)])
        self.available.append(available)
        self.wanted.append(wanted)

    def _drawn(self, file: MeasuredFile) -> Int64:
        """Copies of each document in all phases that are drawn, [documents]."""
        drawn: Int64 = np.where(file.sizes.any(axis=0), self.copies(file).sum(axis=0), 0)
        return drawn

    def _pools(self) -> list[_Pools]:
        """Tokens and documents of each cell that the next phase can take."""
        pools: list[_Pools] = [{} for _ in range(self.cells)]
        number = len(self._draws)
        for _, file in self.read():
            sizes, drawn, bucket = file.sizes[number], self._drawn(file), buckets(file.hashed)
            for cell in range(self.cells):
                in_cell = file.cell == cell
                for level in np.unique(drawn[in_cell]).tolist():
                    rows = in_cell & (drawn == level)
                    tokens, documents = pools[cell].setdefault(
                        level, (np.zeros(BUCKETS, np.int64), np.zeros(BUCKETS, np.int64))
                    )
                    tokens += np.bincount(
                        bucket[rows], weights=sizes[rows], minlength=BUCKETS
                    ).astype(np.int64)
                    documents += np.bincount(bucket[rows & (sizes > 0)], minlength=BUCKETS)
        return pools

    def _targets(self, available: Sequence[int]) -> list[int]:
        """Tokens to draw of each cell of a mix without phases.

        Validation has the rates of training, reduced until nothing repeats.
        """
        count = len(self.entries)
        train, validation = available[:count], available[count:]
        limit = self._rules.max_tokens
        if limit is not None and validation:
            limit = limit * sum(train) // max(1, sum(train) + sum(validation))
        wanted, self.scarce = targets(self.entries, train, limit)
        rates = [
            Fraction(drawn, max(1, tokens)) for drawn, tokens in zip(wanted, train, strict=True)
        ]
        most = max([Fraction(1), *rates])
        return wanted + [
            int(tokens * rate / most) for tokens, rate in zip(validation, rates, strict=False)
        ]

    def _find_total(self) -> None:
        """Find the largest total that all phases can supply."""
        classes: dict[tuple[int, int], Int64] = {}
        bits = 1 << np.arange(len(self.phases), dtype=np.int64)
        for _, file in self.read():
            kinds = ((file.sizes > 0) * bits[:, None]).sum(axis=0)
            for source in range(len(self.entries)):
                in_cell = file.cell == source
                for kind in np.unique(kinds[in_cell]).tolist():
                    tokens = file.sizes[:, in_cell & (kinds == kind)].sum(axis=1)
                    classes[source, kind] = classes.get((source, kind), 0) + tokens
        table = {key: tokens.tolist() for key, tokens in sorted(classes.items())}
        for number, phase in enumerate(self.phases):
            for source, entry in enumerate(self.entries):
                share = phase.shares[source] if phase.shares else 0
                if share and not any(
                    sizes[number] for (other, _), sizes in table.items() if other == source
                ):
                    raise InputError(
                        f"the source {entry.label} has no tokens for phase {number + 1}; fix it, "
                        "or give it the weight 0 there"
                    )
        most = [entry.max_epochs for entry in self.entries]
        self.total, (self.scarce_phase, scarce) = largest_total(self.phases, most, table)
        self.scarce = self.entries[scarce]

    def _phase_targets(self, number: int, pools: Sequence[_Pools]) -> list[int]:
        """Tokens to draw of each cell in a phase.

        Raises InputError if there are not as many. Validation has the rates of training, divided by
        max_epochs, so that nothing repeats.
        """
        phase, count = self.phases[number], len(self.entries)
        left = [
            _supply(pool, entry.max_epochs)
            for pool, entry in zip(pools[:count], self.entries, strict=True)
        ]
        shares = phase.shares or [Fraction(each, sum(left) or 1) for each in left]
        tokens = (
            int((self.total or 0) * (phase.share or 0)) if phase.tokens is None else phase.tokens
        )
        wanted = [int(tokens * share) for share in shares]
        if phase.tokens is None:  # the largest total is exact only up to the last documents
            fits = min(
                Fraction(most, amount or 1) if most < amount else Fraction(1)
                for amount, most in zip(wanted, left, strict=True)
            )
            tokens = int(tokens * fits)
            wanted = [int(tokens * share) for share in shares]
            # Some tokens short of all that is left, the last document would not fit.
            wanted = [
                most if amount and 0 <= most - amount <= max(8, amount // 100) else amount
                for amount, most in zip(wanted, left, strict=True)
            ]
        self.asked.append(tokens)
        if phase.shares is None and phase.tokens is not None and tokens > sum(left):
            raise InputError(
                f"phase {number + 1} asks for {tokens:,} tokens, and {sum(left):,} are left for "
                "it; give a larger max_epochs to repeat them, or ask for fewer"
            )
        for entry, amount, most in zip(self.entries, wanted, left, strict=True):
            if amount > most:
                raise InputError(
                    f"phase {number + 1} asks for {amount:,} tokens of {entry.label}, and {most:,} "
                    "are left for it; give a larger max_epochs to repeat it, or ask for fewer"
                )
        if not sum(wanted):
            raise InputError(
                f"phase {number + 1} has no tokens; give it more, or change its "
                "min_document_tokens and max_document_tokens"
            )
        most_epochs = max(Fraction(1), *(entry.max_epochs for entry in self.entries))
        for cell, pool in enumerate(pools[count:]):
            of_train = sum(int(sizes.sum()) for sizes, _ in pools[cell].values())
            held_out_tokens = sum(int(sizes.sum()) for sizes, _ in pool.values())
            asked = int(held_out_tokens * Fraction(wanted[cell], of_train or 1) / most_epochs)
            wanted.append(min(asked, _supply(pool, Fraction(1))))
        return wanted


def _supply(pool: _Pools, most: Fraction) -> int:
    """Tokens that are left of a source that may be used `most` times."""
    sizes = {level: int(tokens.sum()) for level, (tokens, _) in pool.items()}
    whole = math.floor(most)
    complete = sum(tokens * max(0, whole - level) for level, tokens in sizes.items())
    beyond = sum(tokens * max(0, level - whole) for level, tokens in sizes.items())
    return complete + max(0, int((most - whole) * sum(sizes.values())) - beyond)
