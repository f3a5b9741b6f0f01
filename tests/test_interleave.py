from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packprep.interleave import Stream, lay_out


def stream(files: list[list[int]], times: int, partly: list[list[bool]], windows: int) -> Stream:
    """The stream of documents of these sizes; later copies take the files in reverse."""
    whole = [sum(sizes) for sizes in files]
    part = [
        sum(size for size, one in zip(sizes, taken, strict=True) if one)
        for sizes, taken in zip(files, partly, strict=True)
    ]
    there = [[bool(sizes) for sizes in files], [any(taken) for taken in partly]]
    forward = np.arange(len(files))
    return lay_out(
        times,
        np.array([whole, part], np.int64),
        np.array(there, np.bool_),
        lambda copy: forward[::-1] if copy % 2 else forward,
        windows,
    )


def held(found: Stream, files: list[list[int]], partly: list[list[bool]]) -> list[list[tuple[int, int, float]]]:
    """(file, document, place) of every window, of the files that it says it touches."""
    windows: list[list[tuple[int, int, float]]] = [[] for _ in range(found.windows)]
    for window, file in sorted(set(found.files())):
        sizes, taken = np.array(files[file], np.int64), np.array(partly[file], np.bool_)
        rows, places = found.stretch(file, sizes, taken, window)
        windows[window] += [(file, row, at) for row, at in zip(rows.tolist(), places.tolist(), strict=True)]
    return windows


def test_two_sources_stand_between_each_other_by_their_tokens() -> None:
    a, b = [[1, 1, 1, 1]], [[1, 1]]
    none = [[False] * 4], [[False] * 2]
    streams = [stream(files, 1, partly, 2) for files, partly in zip((a, b), none, strict=True)]
    held_by = [held(found, files, partly) for found, files, partly in zip(streams, (a, b), none, strict=True)]
    windows = [
        sorted([(at, "A") for *_, at in held_by[0][window]] + [(at, "B") for *_, at in held_by[1][window]])
        for window in range(2)
    ]
    assert [[name for _, name in window] for window in windows] == [["A", "B", "A"], ["A", "B", "A"]]


def test_each_copy_takes_the_files_in_an_order_of_its_own_and_the_last_only_some_documents() -> None:
    files, partly = [[2, 2], [4]], [[False, True], [False]]
    found = stream(files, 2, partly, 1)
    assert (found.begins.tolist(), found.ends.tolist()) == ([[0, 4], [12, 8], [16, 18]], [[4, 8], [16, 12], [18, 18]])
    [window] = held(found, files, partly)
    assert [(file, row) for file, row, _ in sorted(window, key=lambda one: one[2])] == [
        (0, 0), (0, 1), (1, 0), (1, 0), (0, 0), (0, 1), (0, 1),
    ]  # fmt: skip


def test_a_source_without_tokens_keeps_its_documents_in_the_first_window() -> None:
    files, partly = [[0, 0]], [[True, True]]
    assert [[row for _, row, _ in window] for window in held(stream(files, 0, partly, 3), files, partly)] == [
        [0, 1],
        [],
        [],
    ]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=8), min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(1, 6),
)
def test_every_copy_stands_in_one_window_and_windows_are_equal_but_for_a_document(
    files: list[list[tuple[int, bool]]], times: int, windows: int
) -> None:
    sizes = [[size for size, _ in file] for file in files]
    partly = [[one if size else times == 0 for size, one in file] for file in files]
    found = stream(sizes, times, partly, windows)
    held_by = held(found, sizes, partly)
    copies = Counter((file, row) for window in held_by for file, row, _ in window)
    assert copies == Counter(
        {
            (file, row): (times if size else min(times, 1)) + partly[file][row]
            for file, documents in enumerate(sizes)
            for row, size in enumerate(documents)
        }
    )
    longest = max((size for file in sizes for size in file), default=0)
    for number, window in enumerate(held_by):
        tokens = sum(sizes[file][row] for file, row, _ in window)
        assert abs(tokens - found.ends.max(initial=0) / windows) <= longest
        assert all(number <= at * windows + 1e-9 and at * windows < number + 1 + 1e-9 for *_, at in window)
