"""Check that the shards hold each document once, each of its tokens once, with BOS and EOS.

`Coverage` counts every record batch that `verify` reads. A whole document takes one bit. Only
segments that may be pieces of a longer document are kept, 40 bytes each and at most a few per pack.
When all shards are read, the pieces of each document are put in order:

    document 7: [0, 4096) [4096, 8192) [8192, 9000) with EOS at 9000   nothing lost or repeated

A document of one turn is told apart by its turn, and that of an epoch by the epoch: its number here
is its key, ((turn + 1) x epochs + epoch) x rows of the sources, rounded up, + row. That is the row
itself for a document that is a whole row, in the first epoch.

Memory is an eighth of a byte per input row and eight bytes per document of one turn, plus a
thousandth of the data. The shards do not say how long a document was, so lengths are compared as
sums: with the ledger of the manifest, and with report.json, source by source.
"""

import threading
from collections import Counter
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packprep.inspect.policy import WHOLE_DOCUMENTS, Policy
from packprep.inspect.trained import TrainedTokens, check_padding
from packprep.packing.account import Dropped
from packprep.schemas.batch_view import BatchView
from packprep.schemas.columns import FILLER, NO_LOSS, WHOLE_ROW
from packprep.schemas.findings import Finding, Findings
from packprep.schemas.manifest import Manifest
from packprep.schemas.report import Report
from packprep.schemas.sources import Sources
from packprep.schemas.trees import segment_documents
from packprep.support.arrays import Int64


class _Piece(NamedTuple):
    """Segments that may be pieces of a document: arrays, [pieces] each.

    document: its key. shard: number in the list of files.
    """

    document: Int64
    start: Int64
    end: Int64
    ends_in_eos: NDArray[np.bool_]
    full: NDArray[np.bool_]
    shard: Int64
    pack: Int64
    segment: Int64


class Coverage:
    """Counts of the batches read so far, from several threads; `finish` reports findings."""

    def __init__(self, manifest: Manifest) -> None:
        self.policy = Policy.from_manifest(manifest)
        self.sources = Sources(manifest)
        shards = [entry for entry in manifest.all_files if entry.is_shard]
        self.shards = [entry.path for entry in shards]
        self.epochs = [entry.epoch or 0 for entry in shards]
        self.longest = np.array([manifest.longest(entry) for entry in shards], np.int64)
        self.manifest = manifest
        firsts = self.sources.firsts.tolist()
        listed = zip(firsts, self.policy.skip_rows, strict=False)
        # Ids of the documents that the build left out.
        self.skipped = np.concatenate([np.empty(0, np.int64), *(a + rows for a, rows in listed)])
        self.totals: Counter[str] = Counter()
        count = len(self.sources.names)
        self.by_source = {
            key: np.zeros(count, np.int64)
            for key in (
                "documents",
                "begun",
                "bos",
                "ended",
                "eos",
                "segments",
                "tokens_packed",
                "filler",
            )
        }
        # Tokens of training documents without padding, [phases, sources].
        self.by_phase = np.zeros((len(manifest.phases), count), np.int64)
        self._phases = [entry.phase if entry.split == "train" else None for entry in shards]
        self.repeated: list[Int64] = []  # keys of documents that begin in several places
        self._rows = 8 * (self.sources.total // 8 + 1)  # of an epoch in _seen, in whole bytes
        self._whole = self._rows * manifest.epochs  # keys below this are of whole rows
        self._seen = np.zeros(self._whole // 8, np.uint8)
        self._turns: list[Int64] = []  # keys of documents of one turn
        self._pieces: list[_Piece] = []
        self._lacking: Int64 = np.empty(0, np.int64)  # documents whose first piece is missing
        self._lock = threading.Lock()
        self._trained = TrainedTokens(manifest, self.policy)
        names = {column.name for column in manifest.columns}
        # Rows of trees always have their documents.
        self.knows_documents = manifest.has_trees or {"document_ids", "document_starts"} <= names
        self.knows_filler = manifest.has_trees or bool({"document_ids", "segment_lengths"} & names)

    def add(
        self, view: BatchView, shard: int, findings: Findings, rows: BatchView | None = None
    ) -> None:
        """Count a batch of shard number `shard`; add faults of the batch to `findings`.

        rows: the rows of its trees, if it has trees.
        """
        lengths, real = view.ends - view.starts, np.clip(view.real, 0, view.ends - view.starts)
        totals = {
            "packs": len(view.pack_segments) - 1,
            "segments": len(lengths),
            "tokens_packed": int(lengths.sum()),
            "filler": int((lengths - real).sum()),
        }
        if rows is not None:
            in_rows = (rows.ends - rows.starts)[~rows.filler]
            totals["shared"] = int(in_rows.sum() - real.sum())
        self._trained.add(view, self.epochs[shard])
        check_padding(view, self.manifest, findings)
        with self._lock:
            self.totals.update(totals)
            if self.knows_documents:
                self._add_segments(view, shard, lengths, real)
                if rows is not None:
                    view, lengths = rows, rows.ends - rows.starts
                    real = np.where(rows.filler, 0, lengths)
                self._add_documents(view, shard, lengths, real, findings)

    def _add_segments(self, view: BatchView, shard: int, lengths: Int64, real: Int64) -> None:
        """Count segments and their tokens by source."""
        ids = segment_documents(view)
        kept = (ids > FILLER) & (ids < self.sources.total)
        source = self.sources.indices(ids[kept])
        self._count("segments", source)
        self._count("tokens_packed", source, lengths[kept])
        self._count("filler", source, (lengths - real)[kept])
        if (phase := self._phases[shard]) is not None:
            in_sources = np.bincount(source, real[kept], len(self.sources.names))
            self.by_phase[phase] += in_sources.astype(np.int64)

    def _add_documents(
        self, view: BatchView, shard: int, lengths: Int64, real: Int64, findings: Findings
    ) -> None:
        ids, starts, tokens = (
            view.columns[name] for name in ("document_ids", "document_starts", "tokens")
        )
        unknown = ids >= self.sources.total
        findings.many(
            "document",
            np.flatnonzero(unknown),
            lambda at: view.segment(
                at,
                "document",
                f"the document id is {ids[at]}; the sources have {self.sources.total} rows",
            ),
        )
        kept = np.flatnonzero((ids > FILLER) & ~unknown & (real > 0) & (starts >= 0))
        ids, starts, lengths, real = (
            ids[kept],
            starts[kept].astype(np.int64),
            lengths[kept],
            real[kept],
        )
        stored = view.columns.get("turn_ids")
        turns = WHOLE_ROW if stored is None else stored[kept].astype(np.int64)
        keys = self.keys(ids, turns, self.epochs[shard])
        source, at = self.sources.indices(ids), view.starts[kept]
        first, last = tokens[at], tokens[at + real - 1]
        begins, later = starts == 0, starts > 0
        self._count("begun", source[begins])
        copies = begins | later if self.policy.one_piece else begins
        self.totals["copies"] += int(copies.sum())

        bos, eos = self.policy.bos, self.policy.eos
        extra = (
            later
            if self.policy.continuation_bos and bos is not None
            else np.zeros(len(ids), np.bool_)
        )
        self.totals["continuation_bos"] += int(extra.sum())

        def wrong(kind: str, which: NDArray[np.bool_], what: str) -> None:
            def finding(at: int) -> Finding:
                return view.segment(
                    int(kept[at]),
                    kind,
                    what.format(row=self.name(int(keys[at])), first=first[at], last=last[at]),
                )

            findings.many(kind, np.flatnonzero(which), finding)

        listed = np.isin(ids, self.skipped)
        wrong("surplus document", listed, "{row} is here, but skip_rows of the build lists it")
        if bos is not None:
            due = begins | extra
            self._count("bos", source[begins & (first == bos)])
            wrong(
                "BOS", due & (first != bos), f"{{row}} begins with id {{first}}; expected BOS {bos}"
            )
            if bos != eos and not self.policy.may_have_ends:
                second = tokens[np.minimum(at + 1, len(tokens) - 1)]
                doubled = due & (real > 1) & (first == bos) & (second == bos)
                wrong(
                    "doubled BOS", doubled, f"{{row}} begins with BOS {bos} twice; expected it once"
                )

        full = real >= self.longest[shard]
        cut = later | full | self.policy.pairs
        if self.policy.wrapped or not self.policy.says_cuts:
            inner = np.ones(len(view.starts), np.bool_)  # not the last segment of its pack
            inner[view.pack_segments[1:] - 1] = False
            cut |= ~inner[kept]
        if eos is not None:
            ended = last == eos
            self._count("ended", source[~cut])
            self._count("eos", source[~cut & ended])
            wrong("EOS", ~cut & ~ended, f"{{row}} ends with id {{last}}; expected EOS {eos}")
            if bos != eos and not self.policy.may_have_ends:
                before = tokens[np.maximum(at + real - 2, 0)]
                wrong(
                    "doubled EOS",
                    ended & (real > 1) & (before == eos),
                    "{row} ends with EOS twice; expected it once",
                )
        labels = view.columns.get("labels")
        if labels is not None and self.manifest.names == "packprep":  # of hf, the format says it
            what = (
                "the first token has a label: a trainer that shifts labels would predict it "
                "from another document"
            )
            wrong("label at start", labels[at] != NO_LOSS, what)
        self._see(keys[copies])
        if cut.any():
            pieces = np.flatnonzero(cut)
            pack = np.searchsorted(view.pack_segments, kept[pieces], side="right") - 1
            self._pieces.append(
                _Piece(
                    document=keys[pieces].astype(np.int64),
                    start=starts[pieces],
                    end=(starts + real - extra)[pieces],
                    ends_in_eos=(last[pieces] == eos)
                    if eos is not None
                    else np.ones(len(pieces), np.bool_),
                    full=full[pieces],
                    shard=np.full(len(pieces), shard),
                    pack=view.first_pack + pack,
                    segment=kept[pieces] - view.pack_segments[pack]
                    if view.numbers is None
                    else view.numbers[kept[pieces]],
                )
            )

    def _count(self, key: str, source: Int64, weights: Int64 | None = None) -> None:
        counts = np.bincount(source, weights, minlength=len(self.sources.names))
        self.by_source[key] += counts.astype(np.int64)

    def keys(self, rows: Int64, turns: Int64 | int, epoch: int = 0) -> Int64:
        """Keys of documents of these rows and turns in an epoch."""
        return (turns - WHOLE_ROW) * self._whole + epoch * self._rows + rows

    def name(self, key: int) -> str:
        """Name of a document, such as "a.jsonl row 17" or "a.jsonl row 17 message 3"."""
        turn, row = divmod(key, self._whole)
        epoch, row = divmod(row, self._rows)
        part = f" {self.manifest.part_name} {turn + WHOLE_ROW}" if turn else ""
        in_epoch = f" in epoch {epoch}" if self.manifest.epochs > 1 else ""
        return self.sources.row(row) + part + in_epoch

    def rows_of(self, keys: Int64) -> Int64:
        """Input row of each key."""
        return keys % self._rows

    def _sources_of(self, keys: Int64) -> Int64:
        return self.sources.indices(self.rows_of(keys))

    def _see(self, documents: Int64) -> None:
        """Mark keys of documents that begin in a pack; note those that are marked already."""
        is_turn = documents >= self._whole
        if is_turn.any():
            self._turns.append(documents[is_turn])
            documents = documents[~is_turn]
        distinct, counts = np.unique(documents, return_counts=True)
        before = self._were_seen(distinct)
        np.bitwise_or.at(self._seen, distinct >> 3, _bit(distinct))
        self._count("documents", self._sources_of(distinct[~before]))
        if (again := before | (counts > 1)).any():
            self.repeated.append(distinct[again])

    def _were_seen(self, documents: Int64) -> NDArray[np.bool_]:
        rows = documents % self._whole
        seen: NDArray[np.bool_] = (self._seen[rows >> 3] & _bit(rows)) != 0
        turns = documents >= self._whole
        if turns.any():
            seen[turns] = np.isin(documents[turns], self._turn_keys())
        return seen

    def _turn_keys(self) -> Int64:
        return np.concatenate(self._turns) if self._turns else np.empty(0, np.int64)

    def _see_turns(self) -> None:
        """Count documents of one turn by their keys, once all are read."""
        keys, counts = np.unique(self._turn_keys(), return_counts=True)
        self._turns = [keys]
        self._count("documents", self._sources_of(keys))
        if (counts > 1).any():
            self.repeated.append(keys[counts > 1])

    def finish(self, report: Report | None, findings: Findings) -> None:
        """Compare the counts with the ledger of the manifest and, by source, with report.json."""
        if self.knows_documents:
            self._see_turns()
            self._count_copies(findings)
            self._compare_epochs(findings)
            self._lay_end_to_end(findings)
            if report is not None:
                self._compare_sources(report, findings)
                self._compare_phases(report, findings)
        if report is not None:
            self._trained.finish(report, findings)
        ledger = self.manifest.ledger
        keys = ["tokens_packed", *(["filler"] if self.knows_filler else [])]
        keys += (
            ["continuation_bos", "overlap"]
            if self.knows_documents and self.policy.says_cuts
            else []
        )
        for key in keys:
            count, expected = self.totals[key], ledger[key]
            # The ledger counts the plan; packs dropped as a remainder held a part of it.
            may_be_less = key in ("continuation_bos", "overlap") and self.policy.any_part_may_lack
            may_be_less |= key == "overlap" and (
                self.policy.repeated > 0 or "shared" in self.totals
            )
            if count > expected or (count < expected and not may_be_less):
                what = f"the ledger has {key} {expected:,}, the shards hold {count:,}"
                findings.add(Finding(kind="ledger", file="manifest.json", what=what))
        if "shared" in self.totals and not self.policy.any_part_may_lack:
            # Where trees are cut, tokens of rows are written again, and count as overlap.
            count = self.totals["shared"]
            expected = ledger.get("shared", 0) - ledger["overlap"] + self.totals["overlap"]
            if count != expected:
                what = f"its rows share {count:,} tokens; the ledger says {expected:,}"
                findings.add(Finding(kind="ledger", file="manifest.json", what=what))

    def _count_copies(self, findings: Findings) -> None:
        """Compare the copies of documents in a mix with the manifest.

        Copies are counted by their first segments.
        """
        policy = self.policy
        distinct = int(np.unpackbits(self._seen).sum()) + len(self._turn_keys())
        copies = self.totals["copies"] - distinct
        may_be_less = policy.copies_may_lack_beginnings
        if policy.repeated and (
            copies > policy.repeated or (copies < policy.repeated and not may_be_less)
        ):
            what = f"it has {policy.repeated:,} repeated documents, the shards hold {copies:,}"
            findings.add(Finding(kind="repeated document", file="manifest.json", what=what))

    def _compare_epochs(self, findings: Findings) -> None:
        """Check that every epoch has the documents of the first one, where none may lack."""
        if self.policy.any_part_may_lack or self.policy.cut_left:
            return
        first, *others = self._seen.reshape(self.manifest.epochs, -1)
        for epoch, seen in enumerate(others, 1):
            rows = np.flatnonzero(np.unpackbits(first ^ seen, bitorder="little"))
            findings.many("epochs", rows, partial(self._in_one_epoch, seen, epoch))

    def _in_one_epoch(self, seen: NDArray[np.uint8], epoch: int, row: int) -> Finding:
        """Finding of a row that is in the first epoch or in this one, and not in both."""
        has, lacks = (epoch, 0) if seen[row >> 3] >> (row & 7) & 1 else (0, epoch)
        what = f"{self.sources.row(row)} is in epoch {has} and not in epoch {lacks}"
        return Finding(kind="epochs", what=what)

    def _lay_end_to_end(self, findings: Findings) -> None:
        """Check the pieces of each document in order.

        Each piece must begin where the one before ended, and the last one must end in EOS.

        Documents that a mix repeats are left out: it is not known which piece belongs to which
        copy. If copies may lack their beginnings, some repeated documents are not recognized, and
        the pieces of their copies are checked together.
        """
        if not self._pieces:
            return
        joined = [np.concatenate(arrays) for arrays in zip(*self._pieces, strict=True)]
        if self.policy.repeated and self.repeated:
            once = ~np.isin(joined[0], np.concatenate(self.repeated))
            joined = [array[once] for array in joined]
            if not once.any():
                return
        order = np.lexsort((joined[1], joined[0]))
        piece = _Piece(*(array[order] for array in joined))
        policy = self.policy

        def wrong(kind: str, pieces: Int64, what: str, **numbers: Int64) -> None:
            """numbers: [pieces], for the text."""

            def finding(number: int) -> Finding:
                at = int(pieces[number])
                values = {name: int(array[number]) for name, array in numbers.items()}
                row = self.name(int(piece.document[at]))
                return Finding(
                    kind=kind,
                    what=what.format(row=row, **values),
                    file=self.shards[int(piece.shard[at])],
                    pack=int(piece.pack[at]),
                    segment=int(piece.segment[at]),
                )

            findings.many(kind, np.arange(len(pieces)), finding)

        new = np.append(True, piece.document[1:] != piece.document[:-1])
        later, firsts = np.flatnonzero(~new), np.flatnonzero(new)
        lasts = np.append(firsts[1:], len(new)) - 1
        due = piece.end[later - 1] - policy.stride
        gap, again = piece.start[later] > due, piece.start[later] < due
        overlap = np.maximum(piece.end[later - 1] - piece.start[later], 0)
        if policy.copies_may_lack_beginnings:
            # Pieces that overlap by more than the stride belong to two copies.
            overlap = overlap[~again]
        self.totals["overlap"] += int(overlap.sum())
        start = piece.start[firsts]
        # A truncated document lacks the tokens at the side that overflow names.
        truncated = (piece.end[lasts] - start == self.longest[piece.shard[lasts]]) & (
            policy.truncated > 0
        )
        headless = (start > 0) & ~(truncated & policy.cut_left)
        tail_dropped = piece.full[lasts] & (Dropped.SHORT_TAIL in policy.dropped)
        endless = ~piece.ends_in_eos[lasts] & ~tail_dropped & ~(truncated & (not policy.cut_left))
        if policy.says_cuts and not policy.any_part_may_lack:
            what = "{row}: tokens {due} to {start} are in no pack"
            wrong("lost tokens", later[gap], what, due=due[gap], start=piece.start[later[gap]] - 1)
            what = "{row} begins here at token {start}; the tokens before it are in no pack"
            wrong("lost tokens", firsts[headless], what, start=start[headless])
            what = "{row} ends here, at token {end}, without EOS"
            wrong("EOS", lasts[endless], what, end=piece.end[lasts[endless]])
        what = "{row}: tokens {start} to {due} are repeated here"
        again &= policy.says_cuts and not policy.copies_may_lack_beginnings
        wrong(
            "repeated tokens",
            later[again],
            what,
            due=due[again] - 1,
            start=piece.start[later[again]],
        )

        documents = piece.document[firsts]
        source = self._sources_of(documents)
        self._lacking = documents[~self._were_seen(documents)]
        self._count("documents", self._sources_of(self._lacking))
        self._count("ended", source)
        self._count("eos", source[piece.ends_in_eos[lasts]])

    def _compare_phases(self, report: Report, findings: Findings) -> None:
        """Compare the tokens of each source in each phase with report.json."""
        files = [int(source["files"]) for source in self.manifest.data["inputs"].get("mix", ())]
        starts = np.append(0, np.cumsum(files))
        for number, phase in enumerate(report.get("phases", ())):
            for at, source in enumerate(phase["sources"]):
                count = int(self.by_phase[number, starts[at] : starts[at + 1]].sum())
                if count != source["trained_tokens"]:
                    what = (
                        f"phase {number + 1} has {source['trained_tokens']:,} tokens of "
                        f"{source['name']}, the shards have {count:,}"
                    )
                    findings.add(Finding(kind="report", file="report.json", what=what))

    def _compare_sources(self, report: Report, findings: Findings) -> None:
        """Compare the documents and tokens of each source with report.json."""
        try:
            for number, source in enumerate(report["sources"]):
                expected = {
                    "tokens_packed": int(source["tokens"]["tokens_packed"]),
                    "filler": int(source["tokens"]["filler"]),
                    "segments": int(source["segments"]),
                }
                rows = source["documents"]
                dropped = [
                    count for reason, count in rows["dropped"].items() if reason in WHOLE_DOCUMENTS
                ]
                once = rows["in"] - rows["empty"] - sum(rows["skipped"].values()) - sum(dropped)
                expected["documents"] = once * self.manifest.epochs
                for key, count in expected.items():
                    in_shards = int(self.by_source[key][number])
                    if in_shards > count or (
                        in_shards < count
                        and not (key == "documents" and self.policy.any_part_may_lack)
                    ):
                        what = (
                            f"{self.sources.names[number]} has {count:,} {key} here, "
                            f"{in_shards:,} in the shards"
                        )
                        if key == "documents" and in_shards < count:
                            what += self._unseen(number, count - in_shards)
                        kind = "lost documents" if key == "documents" else "ledger"
                        findings.add(Finding(kind=kind, file="report.json", what=what))
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            what = "it lacks the counts of sources that a build writes; restore the file"
            findings.add(Finding(kind="report", file="report.json", what=what))

    def _unseen(self, source: int, missing: int) -> str:
        """Describe the rows of a source that are in no pack.

        `missing` of them are lost; the others had no tokens or were dropped.
        """
        first, rows = int(self.sources.firsts[source]), self.sources.rows[source]
        others = np.append(self._lacking, self._turn_keys()) % self._whole
        absent: list[str] = []
        for epoch, seen in enumerate(self._seen.reshape(self.manifest.epochs, -1)):
            bits = np.unpackbits(seen[first // 8 : (first + rows) // 8 + 1], bitorder="little")
            zero = np.flatnonzero(bits[first % 8 : first % 8 + rows] == 0)
            zero = zero[~np.isin(zero + first + epoch * self._rows, others)]
            in_epoch = f" in epoch {epoch}" if self.manifest.epochs > 1 else ""
            absent += [f"{row}{in_epoch}" for row in zero.tolist()]
        shown = ", ".join(absent[:10]) + (", ..." if len(absent) > 10 else "")
        if len(absent) == missing:
            return f"; lost: row {shown}"
        return (
            f"; {missing:,} of the {len(absent):,} rows that are in no pack are lost: row {shown}"
        )


def _bit(documents: Int64) -> NDArray[np.uint8]:
    """Bit of each document in its byte."""
    return (1 << (documents & 7)).astype(np.uint8)
