"""Micro-batches put together are the batch again: every segment with all that it has, in order."""

import itertools
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import (
    PackedBatch,
    PackedLoader,
    PackedShards,
    batch_from_rows,
    context_slice,
    pack_sequences,
)
from tests.helpers.tiny_shards import RICH, rich_row, write_output
from tests.loaders.samples.containers import rollouts

LENGTHS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6)
OF_TOKENS = ("tokens", "position_ids", "labels", "loss_weights")
# Columns with a value for each segment, in any batch of these tests: its own kinds may be wrong.
OF_SEGMENTS = (
    *("document_ids", "segment_lengths", "pair_ids", "pair_sides", "turn_ids"),
    *("source", "rewards", "response_lengths", "uid"),
)


def segments_of(batch: PackedBatch) -> list[dict[str, Any]]:
    """All that a batch has of each segment of its packs, without padding of the batch."""
    columns = {name: getattr(batch, name) for name in (*OF_TOKENS, *OF_SEGMENTS[:2])}
    columns |= dict(batch.extra)
    segments = []
    for number, (first, last) in enumerate(itertools.pairwise(batch.cu_seqlens.tolist())):
        if batch.pack_boundaries is not None and first >= int(batch.pack_boundaries[-1]):
            break
        segment = {}
        for name, values in columns.items():
            if values is not None:
                start, end = (number, number + 1) if name in OF_SEGMENTS else (first, last)
                segment[name] = np.asarray(values[start:end]).tolist()
        segments.append(segment)
    return segments


def check(batch: PackedBatch, packs: int) -> None:
    """The law of micro-batches, for arrays and for tensors."""
    ends = [0, len(batch)] if batch.pack_boundaries is None else batch.pack_boundaries.tolist()
    for of in (batch, batch.torch()) if find_spec("torch") else (batch,):
        parts = of.micro_batches(packs)
        assert [*itertools.chain(*map(segments_of, parts))] == segments_of(batch)
        assert [len(part) for part in parts] == [
            ends[min(first + packs, len(ends) - 1)] - ends[first]
            for first in range(0, len(ends) - 1, packs)
        ]
        for part in parts:
            assert part.max_seqlen == max(np.diff(part.cu_seqlens))
            assert part.cu_seqlens[0] == 0
            assert part.cu_seqlens[-1] == len(part)
        if batch.pack_numbers is not None:
            numbers = [number for part in parts for number in part.pack_numbers.tolist()]
            assert numbers == batch.pack_numbers.tolist()
        if batch.pack_boundaries is not None:
            sizes = [size for part in parts for size in np.diff(part.pack_boundaries).tolist()]
            assert sizes == np.diff(ends).tolist()


@given(LENGTHS, st.booleans(), st.integers(1, 4))
def test_of_rows(lengths: list[list[int]], pairs: bool, packs: int) -> None:
    number = itertools.count()
    rows = []
    for of_row in lengths:
        documents = [next(number) for _ in of_row]
        row = {
            "tokens": [
                100 + document
                for document, size in zip(documents, of_row, strict=True)
                for _ in range(size)
            ],
            "cu_seqlens": [*itertools.accumulate(of_row, initial=0)],
            "document_ids": documents,
            "segment_lengths": of_row,
            "turn_ids": [document % 3 for document in documents],
        }
        if pairs:
            row |= {"pair_ids": documents, "pair_sides": [each % 2 for each in documents]}
        rows.append(row)
    check(batch_from_rows(rows), packs)


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    """Seven packs of padded documents, with a column of tokens and one of segments."""
    directory = tmp_path_factory.mktemp("rich") / "out"
    sizes = [(3,), (4, 1), (2, 2, 5), (8,), (1,), (3, 3), (7, 2)]
    rows = [dict(rich_row(4 * number, *each)) for number, each in enumerate(sizes)]
    for row in rows:
        row["weight"] = [place / 4 for place in range(len(row["tokens"]))]
        row["source"] = [document + 50 for document in row["document_ids"]]
    write_output(directory, {"train": [rows]}, RICH, max_length=32)
    return PackedShards(directory)


@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from(
        [{}, {"pad_multiple": 24}, {"pad_to": 144}, {"max_segments": 24}, {"cp_size": 2}]
    ),
    st.sampled_from(["shifted", "hf", "none"]),
)
def test_of_a_loader(rich: PackedShards, size: int, packs: int, shape: Any, labels: Any) -> None:
    labels = "shifted" if "cp_size" in shape else labels
    weights: Any = None if labels == "none" else "document"
    loader = PackedLoader(
        rich,
        size,
        labels=labels,
        loss_weights=weights,
        columns=["weight", "source"],
        remainder="fill",
        prefetch=0,
        **shape,
    )
    for batch in loader:
        check(batch, packs)


@given(
    rollouts(),
    st.integers(1, 3),
    st.sampled_from([1, 2]),
    st.sampled_from(["contiguous", "zigzag"]),
)
def test_of_samples(samples: list[dict[str, Any]], packs: int, size: int, layout: Any) -> None:
    first = samples[0]
    lists = {name: first[name][:0] for name in ("tokens", "loss_mask", "returns", "advantages")}
    samples.append(first | lists | {"response_lengths": 0})  # no token, at the end of a pack
    batches = pack_sequences(samples, num_packs=2, labels="shifted", cp_size=size, cp_layout=layout)
    for batch in batches:
        check(batch, packs)
    held = [part.document_ids.tolist() for batch in batches for part in batch.micro_batches()]
    assert sorted(number for each in held for number in each if number >= 0) == [
        *range(len(samples))
    ]


def test_a_slice_is_not_cut(rich: PackedShards) -> None:
    (*_, batch) = PackedLoader(rich, 2, labels="shifted", cp_size=2, shuffle=False)
    with pytest.raises(
        ValueError, match=r"cu_seqlens end at .* slice of context_slice; call micro"
    ):
        context_slice(batch, 0, 2).micro_batches()
    whole = context_slice(batch.micro_batches()[0], 0, 1)
    check(whole, 1)


@given(rollouts(), st.sampled_from(["contiguous", "zigzag"]))
def test_a_slice_for_one_rank_is_the_batch(samples: list[dict[str, Any]], layout: Any) -> None:
    (batch,) = pack_sequences(samples, num_packs=1, labels="shifted", cp_layout=layout)
    assert segments_of(context_slice(batch, 0, 1, layout)) == segments_of(batch)
