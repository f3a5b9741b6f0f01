from hypothesis import given
from hypothesis import strategies as st

from packprep.windows.planner import remainders


@given(
    st.lists(st.integers(0, 9), min_size=1), st.integers(1, 12), st.sampled_from(["drop", "fill"])
)
def test_the_remaining_packs_are_a_multiple_after_the_smallest_change(
    counts: list[int], multiple: int, remainder: str
) -> None:
    changes = remainders(counts, multiple, remainder)
    assert (sum(counts) + sum(changes)) % multiple == 0
    assert abs(sum(changes)) < multiple
    assert all(count + change >= 0 for count, change in zip(counts, changes, strict=True))
    changed = [window for window, change in enumerate(changes) if change]
    for count, change in list(zip(counts, changes, strict=True))[
        changed[0] + 1 if changed else 0 :
    ]:
        assert not changed or change == -count, "the last windows that have packs change first"
