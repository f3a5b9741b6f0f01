"""Tokens that a mix, or phases, will draw, predicted from a sample of the documents."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packprep.config.grammar.mix import Entry, targets
from packprep.config.grammar.phases import Phase
from packprep.config.stages import Reading
from packprep.support.arrays import Bools, Int32, Int64
from packprep.windows.phase_sizes import largest_total, uses

Copies = NDArray[np.float64]
"""Copies taken of each document, [documents]."""


@dataclass(frozen=True, kw_only=True)
class SampledDocuments:
    """Documents of a sample, [documents] each.

    length: tokens.
    entry: number of its source in `sources`.
    scale: documents of the input that it stands for.
    validation: True if it is held out.
    """

    length: Int32
    entry: Int64
    scale: NDArray[np.float64]
    validation: Bools

    def repeated(self, copies: Copies) -> float:
        """Tokens of all copies but the first."""
        return float((np.maximum(copies - 1, 0) * self.length * self.scale).sum())

    def of_mix(self, kept: Int64, config: Reading) -> tuple[dict[str, dict[str, float]], Copies]:
        """Training tokens that a mix draws from each source, with their share and epochs.

        kept: tokens in packs of each document, [documents].
        """
        entries = config.entries()
        train, held_out = (
            np.bincount(self.entry, weights=kept * self.scale * split, minlength=len(entries))
            for split in (~self.validation, self.validation)
        )
        available = [round(tokens) for tokens in train]
        limit = config.max_tokens
        if limit is not None:
            limit = round(limit * train.sum() / ((train.sum() + held_out.sum()) or 1))
        wanted, _ = targets(entries, available, limit)
        epochs = np.array(wanted) / np.maximum(available, 1)
        table = {
            entry.label: {
                "tokens": tokens,
                "share": round(tokens / (sum(wanted) or 1), 4),
                "epochs": round(times, 3),
            }
            for entry, tokens, times in zip(entries, wanted, epochs.tolist(), strict=True)
        }
        # Validation has the rates of training, reduced until nothing repeats.
        reduced = np.where(self.validation, max(1.0, *epochs), 1.0)
        return table, epochs[self.entry] / reduced * (kept > 0)

    def of_phases(
        self, sizes: Sequence[Int64], phases: Sequence[Phase], entries: Sequence[Entry]
    ) -> tuple[list[int], Copies]:
        """Training tokens of each phase, and the copies that all phases take of each document.

        sizes: for each phase, tokens in packs of each document, 0 of those held out.
        """
        kinds = sum((size > 0).astype(np.int64) << bit for bit, size in enumerate(sizes))
        keys, class_of = np.unique(np.stack([self.entry, kinds]), axis=1, return_inverse=True)
        table: dict[tuple[int, int], list[int]] = {}
        for number, (source, kind) in enumerate(keys.T.tolist()):
            members = class_of.ravel() == number
            tokens = [float((size * self.scale)[members].sum()) for size in sizes]
            table[source, kind] = [*map(round, tokens)]
        most = [entry.max_epochs for entry in entries]
        amounts = [phase.tokens for phase in phases if phase.tokens is not None]
        if len(amounts) < len(phases):
            total, _ = largest_total(phases, most, table)
            amounts = [int(total * (phase.share or 0)) for phase in phases]
        _, used = uses(phases, amounts, most, table)
        return amounts, np.array(list(used.values()))[class_of.ravel()]
