"""Plan one window: cut documents into segments, plan packs, sum the account.

No token is copied.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.config.pack_rules import PackRules
from packprep.config.stages import Ordering
from packprep.engines.tokenizer import Tokenizer
from packprep.packing import order as orders
from packprep.packing.account import Dropped, Sums
from packprep.packing.api import pack_lengths
from packprep.packing.figures import PlannedWindow, window_figures
from packprep.packing.kernels.common import shuffle
from packprep.packing.kernels.gather import tokens_at
from packprep.packing.plan import PackPlan
from packprep.schemas.index.runs import Pointers
from packprep.support.arrays import Int64
from packprep.support.errors import ConfigError
from packprep.support.hashing import Purpose, stream
from packprep.support.memory import MappedFiles
from packprep.windows.cut import cut_segments, wrap_documents
from packprep.windows.documents import Documents
from packprep.windows.placement import Packs
from packprep.windows.segments import DocumentAccount, Segments
from packprep.windows.trees import share_prefixes

_PIECE = 1 << 20  # documents

CutWindow = tuple[Segments, DocumentAccount]
"""The segments of a window before they are packed, and the account of what is not in them."""

Planner = Callable[[NDArray[np.int32], int], PackPlan]
"""A packer of the user: f(lengths int32 [segments], max_length) -> PackPlan. It is checked."""


@dataclass(frozen=True, kw_only=True)
class WindowPlan:
    """Packs of one window and split, their account and their figures.

    packs: without those that min_pack_tokens drops. planned: packs with them. measured: figures of
    the window, by name.
    """

    packs: Packs
    planned: int
    account: DocumentAccount
    bound: int
    measured: Mapping[str, float]


def plan_window(
    documents: Documents,
    tokenizer: Tokenizer,
    rules: PackRules,
    seed: int,
    planner: Planner | None = None,
    mixed: Int64 | None = None,
) -> WindowPlan:
    """Plan the documents of one window. May raise TooLongError with overflow error.

    mixed: entry of each source, to interleave shuffled packs of different entries.
    """
    documents, stored = shuffled(documents, rules, seed, planner)
    cut = cut_window(documents, tokenizer, rules)
    return plan_cut(documents, cut, rules, seed, planner, mixed, stored)


def shuffled(
    documents: Documents, rules: PackRules, seed: int, planner: Planner | None = None
) -> tuple[Documents, Int64 | None]:
    """The documents in the order in which a window cuts them, and the places of the stored order.

    The places are None if documents keep their order: without a repack, and with any other strategy
    than wrapped, which changes neighbours when it packs.
    """
    if not rules.repack or (planner is None and rules.cutting.packer.name != "wrapped"):
        return documents, None
    listed = documents.listed(rules.skipped)
    visit = np.argsort(listed, kind="stable").astype(np.int32)  # listed ones stay behind
    shuffle(visit, 0, int((~listed).sum()), stream(seed, Purpose.WINDOW_ORDER))
    return documents.take(visit.astype(np.int64)), np.argsort(visit)


def plan_cut(
    documents: Documents,
    cut: CutWindow,
    rules: PackRules,
    seed: int,
    planner: Planner | None = None,
    mixed: Int64 | None = None,
    stored: Int64 | None = None,
) -> WindowPlan:
    """Plan the segments of one window, which several strategies may share.

    mixed: see `plan_window`. stored: the stored order of shuffled documents.
    """
    segments, account, plan = plan_segments(documents, cut, rules, seed, planner)
    if mixed is not None and rules.ordering.pack_order.name == "shuffle" and mixed.any():
        plan = _interleaved(plan, mixed[documents.source[segments.document]], int(mixed.max()) + 1)
    kept = documents.length
    if account.dropped:
        kept = np.where(np.sum([*account.dropped.values()], axis=0) < kept, kept, np.int32(0))
    kept = kept if stored is None else kept[stored]
    window = PlannedWindow(
        plan, kept, rules.ordering.pack_order.ranks, rules.ordering.pack_order.cost
    )
    return WindowPlan(
        packs=packs_of(documents, segments, plan, rules, seed),
        planned=plan.num_packs,
        account=account,
        bound=plan.bound,
        measured=window_figures(window),
    )


def cut_window(documents: Documents, tokenizer: Tokenizer, rules: PackRules) -> CutWindow:
    """The segments of one window before they are packed; prefixes are shared if the rules say so.

    May raise TooLongError with overflow error, or ConfigError; see `share_prefixes`.
    """
    cut = cut_documents(documents, tokenizer, rules)
    return share_prefixes(documents, *cut, rules) if rules.cutting.share_prefixes else cut


def packed_tokens(
    documents: Documents, tokenizer: Tokenizer, rules: PackRules
) -> NDArray[np.int64]:
    """Tokens that each document has in packs, filler not counted, [documents].

    Packs that are dropped later, as a remainder, as small ones or by strategy wrapped, still count:
    they depend on all documents. May raise TooLongError with overflow error.
    """
    segments, _ = cut_documents(documents, tokenizer, rules)
    return np.bincount(
        segments.document, weights=segments.lengths, minlength=len(documents)
    ).astype(np.int64)


def cut_documents(documents: Documents, tokenizer: Tokenizer, rules: PackRules) -> CutWindow:
    """The segments of one window, the same for every strategy except wrapped.

    May raise TooLongError with overflow error.
    """
    segments, account = cut_segments(
        documents.parts,
        sum(token is not None for token in (tokenizer.bos, tokenizer.eos)),
        rules.cutting,
        has_bos=tokenizer.bos is not None,
        multiple=rules.packing.pad_segment_to_multiple,
        labels=documents.labels,
        tokens=documents.tokens if documents.tokens.memory else None,
        skipped=documents.listed(rules.skipped),
    )
    group = None if documents.group is None else documents.group[segments.document]
    return replace(segments, group=group), account


def plan_segments(
    documents: Documents,
    cut: CutWindow,
    rules: PackRules,
    seed: int,
    planner: Planner | None = None,
) -> tuple[Segments, DocumentAccount, PackPlan]:
    """Plan the segments of a window, packs in the order of the rules.

    The lengths of the plan include padding. Returns also the segments and their account, because
    strategy wrapped cuts segments where packs end and drops packs with too few trained tokens.
    """
    (segments, account), cutting = cut, rules.cutting
    if cutting.packer.name == "wrapped" and planner is None:
        segments, edges, account = wrap_documents(
            segments, account, documents.length, cutting, documents.labels
        )
        plan = PackPlan(segments.count, cutting.max_length, np.arange(len(segments)), edges)
        return segments, account, _ordered(plan, rules.ordering, seed)
    multiple, order = rules.packing.pad_segment_to_multiple, rules.ordering.pack_order
    padded = segments.lengths if multiple == 1 else -(-segments.lengths // multiple) * multiple
    if planner is not None:
        constraints = {
            "groups": segments.group,
            "atoms": segments.atom,
            "max_segments_per_pack": rules.packing.max_segments_per_pack,
        }
        plan = _planned(planner, padded, cutting.max_length, **constraints)
        return segments, account, _ordered(plan, rules.ordering, seed)
    plan = pack_lengths(
        padded,
        cutting.max_length,
        cutting.packer.name,
        seed,
        order=order.name,
        shuffle_documents=rules.packing.shuffle_documents,
        max_segments_per_pack=rules.packing.max_segments_per_pack,
        groups=segments.group,
        atoms=segments.atom,
        num_packs=cutting.packer.packs,
        balance_ranks=order.ranks,
        cost=order.cost,
        repack=rules.repack,
    )
    return segments, account, plan


def packs_of(
    documents: Documents,
    segments: Segments,
    plan: PackPlan,
    rules: PackRules,
    seed: int,
) -> Packs:
    """Packs of a plan, without those that hold fewer than `min_pack_tokens` tokens.

    Padding does not count. seed: of the window, to order the packs again if order is balanced.
    """
    packs = Packs(
        documents=documents,
        # With train_overlap, tokens that two pieces share have a label in both.
        segments=replace(segments, repeated=None) if rules.cutting.train_overlap else segments,
        padded=plan.lengths,
        order=plan.order,
        offsets=plan.offsets,
    )
    if not (rules.packing.min_pack_tokens and len(packs)):
        return packs
    tokens = np.add.reduceat(segments.lengths[plan.order], plan.offsets[:-1], dtype=np.int64)
    enough = np.flatnonzero(tokens >= rules.packing.min_pack_tokens)
    if len(enough) == len(packs):
        return packs
    packs = packs.take(enough)
    if (wanted := rules.ordering.pack_order).name != "balanced":
        return packs
    order, offsets = orders.arranged(
        packs.order,
        packs.offsets,
        packs.padded,
        wanted.name,
        seed,
        wanted.ranks,
        wanted.cost,
    )
    return replace(packs, order=order, offsets=offsets)


def _planned(
    planner: Planner, lengths: NDArray[np.int32], max_length: int, **constraints: Any
) -> PackPlan:
    """The checked plan of the user's packer, with segments in input order inside each pack.

    constraints: fields of `PackPlan`.
    """
    plan = planner(lengths, max_length)
    if not isinstance(plan, PackPlan):
        raise ConfigError(f"the planner returned a {type(plan).__name__}, expected a PackPlan")
    plan = PackPlan(lengths, max_length, plan.order, plan.offsets, **constraints)
    plan.check()
    order = plan.order.astype(np.int64)
    offsets = plan.offsets.astype(np.int64)
    pack = np.repeat(np.arange(plan.num_packs), np.diff(offsets))
    return replace(plan, order=order[np.lexsort((order, pack))], offsets=offsets)


def _interleaved(plan: PackPlan, entries: Int64, count: int) -> PackPlan:
    """The plan with every span of packs in the shares of the window. entries: of segments."""
    packs = np.repeat(np.arange(plan.num_packs), np.diff(plan.offsets))
    tokens = np.bincount(
        packs * count + entries[plan.order],
        weights=plan.lengths[plan.order],
        minlength=plan.num_packs * count,
    ).astype(np.int64)
    order = orders.interleaved(tokens.reshape(plan.num_packs, count))
    order, offsets = orders.permuted(plan.order, plan.offsets, order)
    return replace(plan, order=order, offsets=offsets)


def _ordered(plan: PackPlan, ordering: Ordering, seed: int) -> PackPlan:
    """The plan with its packs in the order of `ordering`."""
    order = ordering.pack_order
    ordered, offsets = orders.arranged(
        plan.order, plan.offsets, plan.lengths, order.name, seed, order.ranks, order.cost
    )
    return replace(plan, order=ordered, offsets=offsets)


def account_by_source(
    plan: WindowPlan, tokenizer: Tokenizer | None, sources: int, written: Packs
) -> list[Sums]:
    """Account of each source; the last entry is of filler packs.

    tokenizer: its BOS and EOS are looked for in the tokens; None reads none. sources: 1 to sum over
    all documents.
    written: the packs of the plan that go into shards, with filler packs. Raises ValueError for a
    reason to drop tokens that is not in `Dropped`.
    """
    documents, account, lengths = written.documents, plan.account, written.segments.lengths
    one = sources == 1
    source_of_segment = documents.source if one else documents.source[written.segments.document]

    def by_source(source: NDArray[Any], counts: NDArray[Any]) -> list[int]:
        if one:
            return [int(counts.sum(dtype=np.int64))]
        return np.bincount(source, weights=counts, minlength=sources).astype(np.int64).tolist()  # type: ignore[no-any-return]

    def of_documents(counts: NDArray[Any]) -> list[int]:
        return by_source(documents.source, counts)

    def of_segments(kept: NDArray[np.bool_], counts: NDArray[Any]) -> list[int]:
        return by_source(source_of_segment, np.where(kept, counts, 0))

    has_ids = documents.length > 0
    in_shards = written.placed
    counts: dict[str, list[Any]] = {
        "documents": of_documents(np.ones(len(documents), np.int8)),
        "empty": of_documents(~has_ids),
        "tokens_in": of_documents(documents.length),
        "truncated": of_documents(account.truncated),
        "overlap": of_documents(account.overlap),
        "continuation_bos": of_documents(account.continuation_bos),
        "shared": [0] * sources if account.shared is None else of_documents(account.shared),
        "segments": by_source(source_of_segment, in_shards),
        "tokens_packed": of_segments(in_shards, written.padded),
        "filler": of_segments(in_shards, written.padded - lengths),
    }
    for end, token in tokenizer.ends().items() if tokenizer else ():
        if token is not None:
            counts[f"{end}_added"] = of_documents((documents.parts > 0).sum(axis=0, dtype=np.int8))
            last = documents.length[has_ids].astype(np.int64) - 1
            outermost = documents.tokens.shifted(
                has_ids, last if end == "eos" else np.zeros_like(last)
            )
            # Count the tokens, do not rely on the policy: a CI gate must check the real tokens.
            matches = _matches(token.id, outermost, documents.mapped)
            counts[f"{end}_found"] = by_source(documents.source[has_ids], matches)
    if written.segments.trained is not None:
        counts["loss_tokens"] = of_segments(in_shards, written.segments.trained)
    lost = {Dropped(reason): tokens for reason, tokens in account.dropped.items()}
    dropped = {reason: of_documents(tokens) for reason, tokens in lost.items()}
    dropped_documents = {reason: of_documents(tokens > 0) for reason, tokens in lost.items()}
    if len(plan.packs) < plan.planned:
        dropped[Dropped.SMALL_PACK] = of_segments(~plan.packs.placed, lengths)
    if written is not plan.packs:
        dropped[Dropped.REMAINDER] = of_segments(plan.packs.placed & ~in_shards, lengths)
    fillers = int((written.order < 0).sum())
    return [
        Sums(
            **{name: count[number] for name, count in counts.items()},
            dropped=_counts_of(dropped, number),
            dropped_documents=_counts_of(dropped_documents, number),
        )
        for number in range(sources)
    ] + [Sums(segments=fillers, tokens_packed=fillers, filler=fillers)]


def _counts_of(counts: Mapping[Dropped, Sequence[int]], source: int) -> Counter[str]:
    """Counts of one source by reason, without zeros. counts: by reason, then by source."""
    return Counter(
        {reason: by_source[source] for reason, by_source in counts.items() if by_source[source]}
    )


def _matches(token: int, tokens: Pointers, mapped: MappedFiles) -> NDArray[np.bool_]:
    """Mask of the pointers to this token.

    Read in pieces, because random reads would keep whole files in memory.
    """
    matches = np.empty(len(tokens), np.bool_)
    for first in range(0, len(tokens), _PIECE):
        piece = slice(first, first + _PIECE)
        matches[piece] = tokens_at(tokens.take(piece)) == token
        mapped.relieve()
    return matches


def remainders_of_runs(
    runs: Sequence[Hashable], counts: Sequence[int], multiple: int, remainder: str
) -> list[int]:
    """The changes of `remainders` in each run of windows. runs: of each window, sorted."""
    of_run: dict[Hashable, list[int]] = {}
    for run, count in zip(runs, counts, strict=True):
        of_run.setdefault(run, []).append(count)
    return [change for each in of_run.values() for change in remainders(each, multiple, remainder)]


def remainders(counts: Sequence[int], multiple: int, remainder: str) -> list[int]:
    """Packs to add to (above 0) or drop from (below 0) each window, to make the sum a multiple.

    As few as possible, from the last windows. remainder: drop or fill. Example: counts [7, 2],
    multiple 4, drop -> [0, -1].
    """
    over = sum(counts) % multiple
    changes = [0] * len(counts)
    if over and remainder == "fill":
        # a window that has other packs too
        last = max(window for window, count in enumerate(counts) if count)
        changes[last] = multiple - over
    else:
        for window in reversed(range(len(counts))):
            changes[window] = -min(over, counts[window])
            over += changes[window]
    return changes


def resized(packs: Packs, change: int, order: str) -> Packs:
    """Packs with `change` filler packs added (above 0), or the emptiest dropped (below 0).

    In order balanced the last packs are dropped instead, so that groups of ranks stay together.
    """
    if change >= 0:
        return packs.filled(change) if change else packs
    if order == "balanced":
        return packs.take(np.arange(len(packs) + change))
    left_out = orders.emptiest(packs.lengths, -change)
    return packs.take(np.setdiff1d(np.arange(len(packs)), left_out))
