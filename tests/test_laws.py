"""Laws for every strategy, overflow mode and constraint, on random documents."""

import itertools
import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from packprep.config.build_config import BuildConfig
from packprep.output.shard_writer import ShardLayout, iterate_batches
from packprep.packing.account import Sums
from packprep.packing.strategies import ONE_BY_ONE, STRATEGIES
from packprep.schemas import check_batch, check_ledger
from packprep.windows.documents import Documents, group_codes, renumber_groups
from packprep.windows.placement import Packs
from packprep.windows.planner import WindowPlan, account_by_source, plan_window, resized

from .helpers.documents import (
    BOS,
    CARRIED,
    PAD,
    labelled_columns,
    make_documents,
    tokenizer,
    tokens_of,
    value_of,
    with_columns,
)

LABELLED: dict[str, Any] = {"input_ids_column": "ids", "labels_column": "labels"}


@st.composite
def configs(draw: st.DrawFn, *, labels: bool = False) -> BuildConfig:
    strategy: Any = draw(st.sampled_from([*STRATEGIES, "wrapped"]))
    overflow: Any = draw(st.sampled_from(["split", "truncate", "drop"]))
    multiple = draw(st.sampled_from([1, 1, 2, 4])) if strategy != "wrapped" else 1
    max_length = draw(st.integers(2, 8)) * multiple
    options: dict[str, Any] = {}
    if overflow == "split" and strategy != "wrapped":
        options["continuation_bos"] = draw(st.booleans())
        options["stride"] = draw(st.integers(0, max_length - 1 - options["continuation_bos"]))
    if overflow == "truncate":
        balanced = [":balanced"] if labels and strategy != "wrapped" else []
        overflow += draw(st.sampled_from([":left", "", *balanced]))
    if labels:
        options |= LABELLED
        options["min_loss_tokens"] = draw(st.integers(0, 3))
        options["train_overlap"] = bool(options.get("stride")) and draw(st.booleans())
    if strategy not in ("wrapped", "balanced"):
        options["max_segments_per_pack"] = draw(st.none() | st.integers(1, 4))
    return BuildConfig(
        strategy=strategy,
        overflow=overflow,
        max_length=max_length,
        pad_segment_to_multiple=multiple,
        min_document_tokens=draw(st.integers(0, 3)),
        max_document_tokens=draw(st.none() | st.integers(3, 30)),
        order=draw(st.sampled_from(["shuffle:2", "input:2", "length:2", "balanced:2"])),
        seed=draw(st.integers(0, 3)),
        shuffle_documents=draw(st.booleans()) if strategy in ONE_BY_ONE else False,
        **options,
    )


def packed(
    config: BuildConfig, texts: list[int], **more: Any
) -> tuple[WindowPlan, Packs, Any, Any, pa.Table]:
    policy = tokenizer()
    documents = make_documents(texts, policy, **more)
    plan = plan_window(documents, policy, config.pack_rules(), seed=config.seed)
    table = checked(plan.packs, ShardLayout.of(config.pack_rules(), config.writing, policy))
    return plan, plan.packs, documents, policy, table


def checked(packs: Packs, layout: ShardLayout) -> pa.Table:
    """The packs as a shard has them, each batch with the invariants of the format."""
    batches = list(iterate_batches(packs, layout))
    limits = {"max_length": layout.max_length, "vocab_size": layout.vocab_size}
    for batch in batches:
        check_batch(batch, layout.columns, **limits, where="the batch")
    return pa.Table.from_batches(batches, schema=layout.schema)


@given(configs(), st.lists(st.integers(0, 40), max_size=12))
@example(BuildConfig(max_length=4, strategy="wrapped"), [1, 0, 9, 2])
@example(BuildConfig(max_length=4, stride=2, continuation_bos=True), [30])
def test_every_token_is_in_exactly_one_place_or_in_one_line_of_the_ledger(
    config: BuildConfig, texts: list[int]
) -> None:
    plan, packs, documents, policy, table = packed(config, texts)
    originals = tokens_of(documents)
    seen: list[Counter[int]] = [Counter() for _ in texts]
    totals: Counter[str] = Counter()
    for row in table.to_pylist():
        assert len(row["tokens"]) <= config.max_length
        starts, ends = row["cu_seqlens"][:-1], row["cu_seqlens"][1:]
        assert row["cu_seqlens"][0] == 0
        assert ends[-1] == len(row["tokens"])
        assert row["document_ids"] == sorted(row["document_ids"])  # input order inside a pack
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            assert row["position_ids"][start:end] == list(range(end - start))
            document, offset = row["document_ids"][number], row["document_starts"][number]
            tokens = row["tokens"][start:end]
            repeated = config.stride + config.continuation_bos if config.stride and offset else 0
            if "segment_lengths" in row:
                real = row["segment_lengths"][number]
                assert tokens[real:] == [PAD] * (end - start - real)
                assert (end - start) % config.pad_segment_to_multiple == 0
                assert row["labels"][start + max(1, repeated) : end] == tokens[:real][
                    max(1, repeated) :
                ] + [-100] * (end - start - real)
                tokens = tokens[:real]
            if config.continuation_bos and offset > 0:
                assert tokens[0] == BOS
                tokens = tokens[1:]
                totals["continuation_bos"] += 1
            assert tokens == originals[document][offset : offset + len(tokens)]
            seen[document].update(range(offset, offset + len(tokens)))
    totals["overlap"] = sum(count - 1 for places in seen for count in places.values())
    totals["packed"] = sum(len(places) for places in seen)
    [counts, filler] = account_by_source(plan, policy, 1, packs)
    book = counts.ledger
    check_ledger(book)
    assert filler == Sums()
    assert book["tokens_in"] == sum(map(len, originals))
    for name in ("overlap", "continuation_bos"):
        assert book[name] == totals[name]
    lost = book["truncated"] + sum(book["dropped"].values())
    assert lost == book["tokens_in"] - totals["packed"]


@given(
    configs(labels=True),
    st.lists(st.integers(0, 40), max_size=12),
    st.randoms(use_true_random=False),
    st.booleans(),
)
@example(BuildConfig(max_length=4, stride=2, continuation_bos=True), [30], random.Random(0), True)
@example(
    BuildConfig(max_length=8, overflow="truncate:balanced", **LABELLED),
    [30, 30],
    random.Random(1),
    False,
)
@example(
    BuildConfig(max_length=4, strategy="wrapped", **LABELLED, min_loss_tokens=2),
    [30, 30],
    random.Random(0),
    True,
)
@example(
    BuildConfig(max_length=8, stride=4, **LABELLED, min_loss_tokens=3),
    [40],
    random.Random(0),
    True,
)
def test_labels_and_carried_columns_stay_with_their_tokens(
    config: BuildConfig, texts: list[int], bits: random.Random, as_mask: bool
) -> None:
    policy = tokenizer()
    plain = make_documents(texts, policy)
    originals = tokens_of(plain)
    trained = [[bits.random() < 0.4 for _ in tokens] for tokens in originals]
    documents = with_columns(plain, trained, as_mask=as_mask)
    plan = plan_window(documents, policy, config.pack_rules(), seed=config.seed)
    layout = ShardLayout.of(config.pack_rules(), config.writing, policy, labelled_columns())
    table = checked(plan.packs, layout)
    # where the pieces of each document begin and end
    pieces: dict[int, list[tuple[int, int]]] = defaultdict(list)
    rows = table.to_pylist()
    for row in rows:
        lengths = row.get("segment_lengths") or np.diff(row["cu_seqlens"]).tolist()
        for document, offset, length in zip(
            row["document_ids"], row["document_starts"], lengths, strict=True
        ):
            pieces[document].append(
                (offset, offset + length - (config.continuation_bos and offset > 0))
            )
    labels_seen = 0
    for row in rows:
        for number, (start, end) in enumerate(itertools.pairwise(row["cu_seqlens"])):
            document, offset = row["document_ids"][number], row["document_starts"][number]
            ends = [stop for begin, stop in pieces[document] if begin < offset]
            repeated = max(ends, default=0) - offset
            real = start + row["segment_lengths"][number] if "segment_lengths" in row else end
            text_start = start + (config.continuation_bos and offset > 0)
            for place in range(start, end):
                token, inside = row["tokens"][place], text_start <= place < real
                for column in CARRIED:
                    if column.kind == "token":
                        assert row[column.name][place] == (
                            value_of(column.name, token) if inside else 0
                        )
                keeps = (
                    inside and place > start and trained[document][originals[document].index(token)]
                )
                if not config.train_overlap:
                    keeps = keeps and place >= text_start + repeated
                assert row["labels"][place] == (token if keeps else -100)
                labels_seen += keeps
            for column in CARRIED:
                if column.kind == "segment":
                    assert row[column.name][number] == value_of(column.name, document)
            kept = [label for label in row["labels"][start:end] if label != -100]
            assert len(kept) >= config.min_loss_tokens or config.strategy == "wrapped"
        assert sum(label != -100 for label in row["labels"]) >= config.min_loss_tokens
    [counts, _] = account_by_source(plan, policy, 1, plan.packs)
    check_ledger(counts.ledger)
    assert counts.loss_tokens == labels_seen


@given(
    configs(),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), st.booleans()), max_size=12),
    st.booleans(),
)
@example(
    BuildConfig(max_length=4, strategy="stream", order="input"),
    [(3, 0, True), (2, 1, False), (2, 0, False)],
    True,
)
@example(
    BuildConfig(max_length=4, strategy="stream", order="input"),
    [(0, 0, False), (1, 1, False), (1, 0, False)],
    True,
)
def test_rows_of_skip_rows_leave_the_packs_of_all_other_rows(
    config: BuildConfig, texts: list[tuple[int, int, bool]], grouped: bool
) -> None:
    """Others are packed as if these were not read; the account has them by their own reason."""
    policy, grouped = tokenizer(), grouped and config.strategy not in ("wrapped", "balanced")
    everything = make_documents([length for length, _, _ in texts], policy)
    listed = np.array([is_listed for _, _, is_listed in texts], np.bool_)
    groups = np.array([group for _, group, _ in texts], np.int32)

    def planned(documents: Documents, groups: Any, skipped: Any) -> tuple[WindowPlan, Any]:
        if grouped:
            codes = group_codes(pa.chunked_array([groups]))
            documents = renumber_groups(replace(documents, group=codes), skipped)
        plan = plan_window(documents, policy, config.pack_rules(skipped), seed=config.seed)
        layout = ShardLayout.of(config.pack_rules(), config.writing, policy)
        return plan, checked(plan.packs, layout).to_pylist()

    plan, packs = planned(everything, groups, np.flatnonzero(listed))
    without, expected = planned(everything.take(~listed), groups[~listed], None)
    assert packs == expected
    assert (plan.measured, plan.bound) == (without.measured, without.bound)
    [counts, _] = account_by_source(plan, policy, 1, plan.packs)
    [fewer, _] = account_by_source(without, policy, 1, without.packs)
    gone = int(everything.length[listed].sum())
    assert counts.dropped == fewer.dropped + Counter({"skip_rows": gone} if gone else {})
    assert counts.tokens_in == fewer.tokens_in + gone
    assert (counts.tokens_packed, counts.truncated) == (fewer.tokens_packed, fewer.truncated)


@given(configs(), st.lists(st.integers(0, 40), max_size=12), st.integers(0, 16))
def test_packs_with_few_tokens_are_dropped_and_counted_by_their_own_reason(
    config: BuildConfig, texts: list[int], least: int
) -> None:
    """The others are those of a build that keeps all, in the same order."""
    everything, all_packs, *_ = packed(config, texts)
    config = replace(config, min_pack_tokens=min(least, config.max_length))
    plan, packs, _, policy, _ = packed(config, texts)

    def tokens(one: Packs, pack: int) -> int:
        of_pack = one.order[one.offsets[pack] : one.offsets[pack + 1]]
        return int(one.segments.lengths[of_pack].sum())

    def contents(one: Packs, chosen: list[int]) -> list[list[int]]:
        return [one.order[one.offsets[p] : one.offsets[p + 1]].tolist() for p in chosen]

    enough = [p for p in range(len(all_packs)) if tokens(all_packs, p) >= config.min_pack_tokens]
    kept, expected = contents(packs, list(range(len(packs)))), contents(all_packs, enough)
    if config.order.startswith("balanced"):  # ordered again, so that ranks have packs of equal cost
        kept, expected = sorted(kept), sorted(expected)
    assert kept == expected
    assert (plan.planned, plan.bound) == (len(all_packs), everything.bound)
    [counts, _] = account_by_source(plan, policy, 1, packs)
    small = sum(tokens(all_packs, p) for p in range(len(all_packs)) if p not in enough)
    assert counts.dropped["small_pack"] == small
    check_ledger(counts.ledger)


@given(st.lists(st.integers(1, 9), min_size=4, max_size=12), st.integers(-2, 3))
def test_resizing_adds_filler_packs_or_leaves_out_the_emptiest(
    texts: list[int], change: int
) -> None:
    config = BuildConfig(max_length=8, packs_multiple_of="2:fill")
    plan, packs, _, policy, _ = packed(config, texts)
    change = max(change, -len(packs))
    written = resized(packs, change, config.pack_order.name)
    assert len(written) == len(packs) + change
    checked(written, ShardLayout.of(config.pack_rules(), config.writing, policy))
    before = sorted(packs.lengths.tolist())
    kept = before[-change:] if change < 0 else sorted(before + [1] * change)
    assert sorted(written.lengths.tolist()) == kept
    counts = Sums.total(account_by_source(plan, policy, 1, written))
    check_ledger(counts.ledger)
    assert counts.tokens_packed == int(written.lengths.sum())
