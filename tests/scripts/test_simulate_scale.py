import sys
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from packprep import pack_lengths

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "checks"))

from simulate_scale import Job, Lengths, Speed, web_text


def test_the_number_of_packs_is_that_of_the_real_planner_for_ten_million_documents() -> None:
    counts = web_text(4096).scaled(10_000_000)
    documents = np.repeat(counts.lengths, counts.counts)
    plan = pack_lengths(documents, 4096, "best_fit")
    assert counts.documents == len(documents) == 10_000_000
    assert counts.packs(4096) == len(plan.offsets) - 1
    assert counts.bound(4096) == plan.bound


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(1, 10**10))
def test_scaling_gives_exactly_so_many_documents_and_keeps_the_shares(
    counts: list[int], documents: int
) -> None:
    before = Lengths(np.arange(len(counts), 0, -1, dtype=np.int32), np.array(counts, np.int64))
    after = before.scaled(documents)
    assert after.documents == documents
    share = dict(zip(after.lengths.tolist(), (after.counts / documents).tolist(), strict=True))
    for length, count in zip(before.lengths.tolist(), before.counts.tolist(), strict=True):
        assert abs(share.get(length, 0.0) - count / before.documents) <= 1 / documents + 1e-12


def test_ten_billion_documents_are_planned_from_their_counts_close_to_the_bound() -> None:
    counts = web_text(4096).scaled(10**10)
    assert 0 <= counts.packs(4096) - counts.bound(4096) < 1e-4 * counts.bound(4096)


def test_a_worker_more_never_takes_longer_and_one_does_all_the_work() -> None:
    job = Job(web_text(4096).scaled(10**8), 4096, 4.2, 64_000_000, 4_000_000_000)
    speed = Speed(tokenize=5e-8, write=1e-8, start=0.0)
    alone = job.seconds(1, speed)
    assert np.isclose(alone, job.lengths.tokens * 6e-8)
    times = [job.seconds(workers, speed) for workers in (1, 2, 8, 64, 4096)]
    assert times == sorted(times, reverse=True)
    assert times[1] >= alone / 2
