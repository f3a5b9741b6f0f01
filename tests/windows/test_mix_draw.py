import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packprep.windows import mix_draw
from packprep.windows.mix_draw import BUCKETS, Draw, buckets, finish_draw, hashes, place

Drawn = tuple[Draw, np.ndarray]


def drawn(sizes: list[int], wanted: int, seed: int = 0) -> Drawn:
    """The draw of `wanted` tokens from documents 0, 1, 2, ..., and the copies of each."""
    ids, tokens = np.arange(len(sizes)), np.array(sizes, np.int64)
    hashed = hashes(seed, ids)
    bucket = buckets(hashed)
    end = place(
        wanted,
        {
            0: (
                np.bincount(bucket, weights=tokens, minlength=BUCKETS).astype(np.int64),
                np.bincount(bucket[tokens > 0], minlength=BUCKETS),
            )
        },
    )
    near = (bucket >= end.first) & (bucket < end.last) & (tokens > 0)
    # as from two files; their order has no effect
    halves = [near & (ids % 2 == half) for half in (1, 0)]
    draw = finish_draw(end, [(hashed[half], ids[half], tokens[half]) for half in halves])
    return draw, draw.copies(ids, bucket, tokens, np.zeros_like(ids))


def plain(sizes: list[int], wanted: int, seed: int) -> list[int]:
    """Complete copies, then documents in the order of their hashes, each if it still fits."""
    times, left = divmod(wanted, sum(sizes)) if sum(sizes) else (0, 0)
    copies = [times if size else 0 for size in sizes]
    for document in np.argsort(hashes(seed, np.arange(len(sizes)))).tolist():
        if 0 < sizes[document] <= left:
            copies[document] += 1
            left -= sizes[document]
    return copies


def test_only_documents_that_may_fill_the_rest_are_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mix_draw, "_CANDIDATES", 10)
    tokens = np.full(BUCKETS, 7)
    end = place(7 * 100 + 3, {0: (tokens, np.full(BUCKETS, 4))})
    assert (end.first, end.last, end.room) == (100, 103, 3)


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 2000), st.integers(0, 5))
@example([1000] + [1] * 50, 40, 0)
@example([0, 5, 0], 15, 0)
@example([0, 0], 7, 0)
def test_a_draw_equals_the_reference_and_no_document_left_out_would_fit(
    sizes: list[int], wanted: int, seed: int
) -> None:
    _, copies = drawn(sizes, wanted, seed)
    assert copies.tolist() == plain(sizes, wanted, seed)
    left = wanted - int((copies * np.array(sizes, np.int64)).sum())
    if sum(sizes):
        assert left >= 0
        once_more = copies > min(copies[np.array(sizes) > 0])
        assert all(
            size > left for size, taken in zip(sizes, once_more, strict=True) if size and not taken
        )
