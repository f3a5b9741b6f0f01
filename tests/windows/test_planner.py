from hypothesis import given
from hypothesis import strategies as st

from packprep.config.build_config import BuildConfig
from packprep.windows.planner import account_by_source, plan_window, remainders, window_seed
from tests.helpers import documents


@given(
    st.lists(st.integers(0, 9), min_size=1), st.integers(1, 12), st.sampled_from(["drop", "fill"])
)
def test_the_remaining_packs_are_a_multiple_after_the_smallest_change(
    counts: list[int], multiple: int, remainder: str
) -> None:
    config = BuildConfig(packs_multiple_of=multiple, remainder=remainder)  # type: ignore[arg-type]
    changes = remainders(counts, config)
    assert (sum(counts) + sum(changes)) % multiple == 0
    assert abs(sum(changes)) < multiple
    assert all(count + change >= 0 for count, change in zip(counts, changes, strict=True))
    changed = [window for window, change in enumerate(changes) if change]
    for count, change in list(zip(counts, changes, strict=True))[
        changed[0] + 1 if changed else 0 :
    ]:
        assert not changed or change == -count, "the last windows that have packs change first"


def test_every_window_and_split_has_its_own_seed() -> None:
    config = BuildConfig(seed=5)
    seeds = {window_seed(config, window, split) for window in range(100) for split in range(2)}
    assert len(seeds) == 200
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_bos_and_eos_are_counted_in_the_tokens_not_taken_from_the_policy() -> None:
    policy = documents.tokenizer()
    tokenized = documents.make_documents([3, 0, 1, 5], policy)
    tokenized.tokens.memory[0][0] = documents.FIRST_ID  # the first document has lost its BOS
    plan = plan_window(tokenized, policy, BuildConfig(max_length=8), seed=0)
    [counts, _] = account_by_source(plan, policy, 1, plan.packs)
    assert (counts.bos_added, counts.bos_found, counts.eos_found) == (3, 2, 3)
