"""Trees of a window: every row is there once, its labels follow, and the account closes."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import BuildConfig
from packprep.output.shard_writer import ShardLayout, iterate_batches
from packprep.schemas.columns import NO_LOSS, STANDARD_COLUMNS
from packprep.schemas.errors import FormatError
from packprep.schemas.validate import check_batch
from packprep.windows.documents import PREFIX_GROUP, SPLIT
from packprep.windows.planner import account_by_source, cut_documents, plan_window
from tests.helpers import documents
from tests.helpers.trees import Window, plan_and_layout, tree_documents, windows


def rows_in(batch: dict[str, list[Any]]) -> list[tuple[int, int, int, list[int], list[int], int]]:
    """Rows of a pack: id, turn, start, tokens, labels, trained tokens."""
    cu, parents = batch["cu_seqlens"], batch["segment_parents"]
    rows = []
    for number, last in enumerate(batch["row_segments"]):
        path: list[int] = []
        segment = last
        while segment >= 0:
            path = [*range(cu[segment], cu[segment + 1]), *path]
            segment = parents[segment]
        assert batch["row_ends"][number] == path[-1] + 1
        begin = batch["row_label_starts"][number]
        labels = [
            batch["labels"][token] if place >= begin else NO_LOSS
            for place, token in enumerate(path)
        ]
        assert [batch["position_ids"][token] for token in path] == [*range(len(path))]
        rows.append(
            (
                batch["row_ids"][number],
                batch["row_turns"][number],
                batch["row_starts"][number],
                [batch["tokens"][token] for token in path],
                labels,
                batch["row_trained"][number],
            )
        )
    return rows


@given(
    window=windows(),
    max_length=st.integers(2, 24),
    shared=st.integers(1, 4),
    as_mask=st.booleans(),
    strategy=st.sampled_from(["best_fit", "first_fit", "knapsack", "greedy", "stream"]),
    options=st.sampled_from(
        [
            {},
            {"overflow": "truncate"},
            {"overflow": "truncate:left"},
            {"overflow": "drop"},
            {"stride": 1},
            {"stride": 1, "train_overlap": True},
            {"packs_multiple_of": "4:fill"},
            {"max_segments_per_pack": 1},
            {"max_segments_per_pack": 3, "stride": 1},
        ]
    ),
)
def test_every_row_is_in_one_pack_with_its_labels(
    window: Window,
    max_length: int,
    shared: int,
    as_mask: bool,
    strategy: str,
    options: dict[str, Any],
) -> None:
    rows, ids, masks = window
    tokenized = tree_documents(rows, ids, masks, as_mask=as_mask)
    settings = {
        "max_length": max_length,
        "share_prefixes": shared,
        "min_loss_tokens": 0,
        "strategy": strategy,
        **options,
    }
    plan, layout, config = plan_and_layout(tokenized, **settings)
    packs = plan.packs.filled(1) if config.multiple.remainder == "fill" else plan.packs
    if not len(packs):
        return
    found = []
    weights = trained = 0
    for batch in iterate_batches(packs, layout):
        check_batch(
            batch,
            layout.columns,
            max_length=max_length,
            vocab_size=layout.vocab_size,
            where="a.arrow",
        )
        for pack in batch.to_pylist():
            found += rows_in(pack)
            if config.max_segments_per_pack is not None:
                assert len(pack["segment_parents"]) <= config.max_segments_per_pack
            weights += sum(pack["label_weights"])
            trained += sum(label != NO_LOSS for label in pack["labels"])
    expected = []
    whole = documents.tokenizer(bos=False, eos=False)
    segments, _ = cut_documents(tokenized, whole, config.pack_rules())
    heads = segments.untrained_head(config.train_overlap).tolist()
    for number, head in enumerate(heads):
        document = int(segments.document[number])
        start, count = int(segments.start[number]), int(segments.count[number])
        tokens = rows[document][start : start + count]
        mask = [True] * count if masks is None else masks[document][start : start + count]
        labels = [
            token if keep and place >= head else NO_LOSS
            for place, (token, keep) in enumerate(zip(tokens, mask, strict=True))
        ]
        expected.append(
            (ids[document], document, start, tokens, labels, sum(x != NO_LOSS for x in labels))
        )
    assert sorted(found) == sorted(expected)
    assert weights == sum(row[-1] for row in found)
    [counts, filler] = account_by_source(plan, whole, 1, packs)
    assert counts.loss_tokens in (None, trained)
    total = counts + filler
    assert total.tokens_put_in == total.tokens_packed + total.shared + total.tokens_lost
    assert total.tokens_packed == int(packs.lengths.sum())


@given(
    window=windows(),
    most=st.integers(0, 3),
    copies=st.integers(1, 3),
    as_mask=st.booleans(),
    options=st.sampled_from([{}, {"max_segments_per_pack": 3}, {"strategy": "greedy"}]),
)
def test_sides_of_a_pair_share_a_pack_in_any_trees(
    window: Window, most: int, copies: int, as_mask: bool, options: dict[str, Any]
) -> None:
    """Sides are drawn from rows that begin alike; a mix may have a pair several times."""
    rows, groups, masks = window
    sides = [*zip(range(len(rows)), reversed(range(len(rows))), strict=True)] * copies
    tokens = [rows[one] + rows[other] for one, other in sides]
    of_sides = None if masks is None else [masks[one] + masks[other] for one, other in sides]
    ids = [*range(len(rows))] * copies
    tokenized = tree_documents(tokens, ids, of_sides, as_mask=as_mask)
    values = {SPLIT: np.array([len(rows[one]) for one, _ in sides], np.int32)}
    if most:
        values[PREFIX_GROUP] = np.array([groups[one] % most for one, _ in sides])
    settings: dict[str, Any] = {"share_prefixes": 1, "overflow": "truncate", "min_loss_tokens": 0}
    config = BuildConfig(max_length=16, **settings, **options)
    policy = documents.tokenizer(bos=False, eos=False)
    pairs = replace(tokenized, values=values)
    plan = plan_window(pairs, policy, config.pack_rules(), seed=0)
    carried = [STANDARD_COLUMNS[name] for name in ("pair_ids", "pair_sides", *tokenized.aligned)]
    layout = ShardLayout.of(config.pack_rules(), config.writing, policy, carried)
    found = Counter[int]()
    for batch in iterate_batches(plan.packs, layout):
        check_batch(
            batch, layout.columns, max_length=16, vocab_size=layout.vocab_size, where="a.arrow"
        )
        for pack in batch.to_pylist():
            found += Counter(pack["row_ids"])
    assert found == dict.fromkeys(ids, 2 * copies)


def test_a_prefix_shorter_than_min_shared_is_written_twice() -> None:
    rows = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6]]
    tokenized = tree_documents(rows, [0, 0, 0])
    shared = {}
    for least in (1, 2, 3, 4):
        plan, _, _ = plan_and_layout(tokenized, max_length=16, share_prefixes=least)
        assert plan.account.shared is not None
        shared[least] = int(plan.account.shared.sum())
    assert shared == {1: 5, 2: 5, 3: 3, 4: 0}


def sound_batch() -> tuple[pa.RecordBatch, Any, int]:
    rows = [[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6]]
    masks = [[False] * 3 + [True], [False] * 3 + [True], [False, False, True]]
    plan, layout, _ = plan_and_layout(tree_documents(rows, [0, 0, 0], masks), max_length=16)
    [batch] = iterate_batches(plan.packs, layout)
    return batch, layout.columns, layout.vocab_size


@pytest.mark.parametrize(
    ("column", "place", "value", "what"),
    [
        ("segment_parents", 1, 5, "segment_parents has 5"),
        ("segment_parents", 4, 2, "parent 2 is not on the path"),
        ("segment_parents", 3, 0, "document_starts has 3"),
        ("position_ids", 3, 2, "position"),
        ("label_weights", 3, 2, "label_weights has 2"),
        ("label_weights", 0, 1, "label_weights has 1"),
        ("row_segments", 0, 9, "row_segments has 9"),
        ("row_ends", 1, 3, "row_ends has 3"),
        ("row_trained", 0, 5, "row_trained has 5; expected its labels"),
        ("row_ids", 0, -1, "row_ids has -1"),
    ],
)
def test_a_wrong_value_is_reported(column: str, place: int, value: int, what: str) -> None:
    batch, columns, vocabulary = sound_batch()
    [row] = batch.to_pylist()
    row[column][place] = value
    planted = pa.RecordBatch.from_pylist([row], schema=batch.schema)
    limits: dict[str, Any] = {"max_length": 16, "vocab_size": vocabulary, "where": "a.arrow"}
    check_batch(batch, columns, **limits)
    with pytest.raises(FormatError, match=what):
        check_batch(planted, columns, **limits)
