"""Slices of batches for the ranks of context parallelism."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedLoader, context_indices, context_slice, unpack
from tests.helpers.tiny_shards import rich_row

from .test_batches import example, rich


def test_slices_for_context_parallel_ranks() -> None:
    cu = np.array([0, 4, 12], np.int32)
    assert context_indices(cu, 1, 2, "contiguous").tolist() == [6, 7, 8, 9, 10, 11]
    assert context_indices(cu, 0, 2, "zigzag").tolist() == [0, 3, 4, 5, 10, 11]
    assert context_indices(cu, 1, 2, "zigzag").tolist() == [1, 2, 6, 7, 8, 9]
    with pytest.raises(ValueError, match=r"segment 0 has 4 tokens; zigzag .* need multiples of 8"):
        context_indices(cu, 0, 4, "zigzag")
    with pytest.raises(ValueError, match="12 tokens are not a multiple of cp_size=5; pass"):
        context_indices(cu, 0, 5, "contiguous")
    with pytest.raises(ValueError, match="cp_rank is 2; expected 0 to 1"):
        context_indices(cu, 2, 2, "contiguous")


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.integers(1, 4),
    st.sampled_from(["contiguous", "zigzag"]),
)
def test_context_parallel_ranks_share_every_token_once_and_equally(
    lengths: list[int], size: int, layout: Any
) -> None:
    cu = np.cumsum([0, *(2 * size * length for length in lengths)]).astype(np.int32)
    shares = [context_indices(cu, rank, size, layout).tolist() for rank in range(size)]
    assert {len(share) for share in shares} == {cu[-1] // size}
    assert sorted(place for share in shares for place in share) == list(range(cu[-1]))


def test_a_sliced_batch_keeps_whole_boundaries_and_its_own_tokens(tmp_path: Path) -> None:
    options: dict[str, Any] = {"cp_size": 2, "loss_weights": "segment", "columns": ["weight"]}
    loader = PackedLoader(rich(tmp_path, rich_row(0, 3, 4)), 1, labels="shifted", **options)
    (batch,) = loader
    assert len(batch) % 4 == 0
    halves = [context_slice(batch, rank, 2) for rank in range(2)]
    for whole, *parts in (
        [batch.tokens, *(half.tokens for half in halves)],
        [batch.labels, *(half.labels for half in halves)],
        [batch.extra["weight"], *(half.extra["weight"] for half in halves)],
    ):
        assert np.concatenate(parts).tolist() == whole.tolist()
    assert sum(half.loss_weights.sum() for half in halves) == 2
    assert all(half.cu_seqlens.tolist() == batch.cu_seqlens.tolist() for half in halves)
    with pytest.raises(ValueError, match="the batch has unshifted labels, which lose one at the"):
        context_slice(example(packs_per_batch=1)[0], 0, 2)


def test_zigzag_slices_of_padded_segments(tmp_path: Path) -> None:
    """As of a build with --pad-segment-to-multiple 4."""
    rows = [rich_row(4 * number, 1 + number % 5, 7 - number % 6) for number in range(7)]
    shards = rich(tmp_path, *rows)
    shards.manifest.data["inputs"]["options"]["pad_segment_to_multiple"] = 4
    assert shards.segment_multiple == 4
    options: dict[str, Any] = {"labels": "shifted", "cp_layout": "zigzag"}
    for batch in PackedLoader(shards, 2, cp_size=2, remainder="fill", **options):
        shares = [context_slice(batch, rank, 2, "zigzag") for rank in range(2)]
        assert sorted(np.concatenate([share.tokens for share in shares])) == sorted(batch.tokens)
        own = int((batch.segment_lengths * (batch.document_ids >= 0)).sum())
        assert batch.num_real_tokens == own == sum(map(len, unpack(batch.tokens, batch)))
    with pytest.raises(ValueError, match=r"multiple of 4; zigzag slices for cp_size=4 need 8: bui"):
        PackedLoader(shards, 2, cp_size=4, **options)
