from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.packing.order import interleaved
from packprep.windows import mix_draw
from packprep.windows.mix import Stream, lay_out
from packprep.windows.mix_draw import BUCKETS, place


def stream(files: list[list[int]], copies: int, windows: int) -> Stream:
    """The stream of documents of these sizes, with the files in reverse order."""
    tokens = np.array([sum(sizes) for sizes in files], np.int64)
    has_documents = np.array([bool(sizes) for sizes in files], np.bool_)
    return lay_out(copies, tokens, has_documents, np.arange(len(files))[::-1], windows)


def documents_of(streamed: Stream, files: list[list[int]]) -> list[list[tuple[int, int, float]]]:
    """(file, document, place) of every window, from the files that `Stream.files` gives for it."""
    windows: list[list[tuple[int, int, float]]] = [[] for _ in range(streamed.windows)]
    for window, file in sorted(set(streamed.files())):
        rows, places = streamed.stretch(file, np.array(files[file], np.int64), window)
        windows[window] += [
            (file, row, place) for row, place in zip(rows.tolist(), places.tolist(), strict=True)
        ]
    return windows


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=8), min_size=1, max_size=5),
    st.integers(0, 4),
    st.integers(1, 6),
)
def test_every_copy_is_in_one_window_and_windows_differ_by_at_most_a_document(
    files: list[list[int]], copies: int, windows: int
) -> None:
    streamed = stream(files, copies, windows)
    by_window = documents_of(streamed, files)
    times = Counter((file, row) for window in by_window for file, row, _ in window)
    assert times == Counter(
        {
            (file, row): copies if size else min(copies, 1)
            for file, sizes in enumerate(files)
            for row, size in enumerate(sizes)
        }
    )
    longest = max((size for sizes in files for size in sizes), default=0)
    for number, window in enumerate(by_window):
        tokens = sum(files[file][row] for file, row, _ in window)
        assert abs(tokens - streamed.ends.max(initial=0) / windows) <= longest
        assert all(
            number <= place * windows + 1e-9 and place * windows < number + 1 + 1e-9
            for *_, place in window
        )
        if windows >= copies:
            assert len({(file, row) for file, row, _ in window}) == len(window), (
                "two copies in a window"
            )


def test_only_documents_that_may_fill_the_rest_of_a_draw_are_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mix_draw, "_CANDIDATES", 10)
    end = place(7 * 100 + 3, {0: (np.full(BUCKETS, 7), np.full(BUCKETS, 4))})
    assert (end.first, end.last, end.room) == (100, 103, 3)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=80))
def test_every_span_of_packs_of_two_sources_is_within_the_largest_pack_of_the_shares(
    packs: list[tuple[int, int]],
) -> None:
    tokens = np.array(packs, np.int64).reshape(-1, 2)
    order = interleaved(tokens)
    assert sorted(order.tolist()) == list(range(len(packs)))
    total = tokens.sum()
    above = tokens * total - tokens.sum(axis=1)[:, None] * tokens.sum(axis=0)
    ends = np.append(0, np.cumsum(above[order, 0]))
    assert np.ptp(ends) <= 2 * abs(above[:, 0]).max(initial=0)


def test_packs_of_one_source_keep_their_order() -> None:
    tokens = np.array([[5, 0, 0], [0, 7, 0], [3, 0, 0], [0, 0, 2], [4, 0, 0]])
    order = interleaved(tokens).tolist()
    assert [pack for pack in order if pack in (0, 2, 4)] == [0, 2, 4]
