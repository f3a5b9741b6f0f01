"""Gradients on packs, and on slices of packs over ranks, are those of one sample at a time."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.torch_models import skip_without

skip_without("torch")

import torch  # noqa: E402

from packprep.loaders import log_probs_and_entropy, pack_sequences, selective_log_probs  # noqa: E402
from tests.helpers.examples import share_of_examples  # noqa: E402
from tests.loaders.samples import policy  # noqa: E402
from tests.loaders.samples.policy import CASES, ROLLOUTS, Gradients, on_packs, one_by_one  # noqa: E402


def assert_equal(found: Gradients, expected: Gradients) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=8).filter(lambda each: max(each) > 3),
    st.sampled_from(["token", "sample"]),
    st.sampled_from(["hf", "shifted"]),
    st.integers(12, 40),
)
@settings(max_examples=share_of_examples(5))
def test_packs_give_the_gradients_of_samples(
    lengths: list[int], mean: str, labels: str, max_tokens: int
) -> None:
    rollouts = policy.samples(0, lengths)
    for sample in rollouts:
        sample["loss_mask"][-1:] = True  # so that there is a mean
    found = on_packs(rollouts, mean, max_tokens=max_tokens, labels=labels)
    assert_equal(found, one_by_one(rollouts, mean))


@pytest.mark.parametrize("mean", ["token", "sample"])
@pytest.mark.parametrize("max_tokens", [16, 40])
def test_trees_give_the_gradients_of_samples(mean: str, max_tokens: int) -> None:
    """Three prompts of four samples each; some responses begin alike."""
    rollouts = policy.of_prompts(seed=2, prompts=3, each=4)
    expected = one_by_one(rollouts, mean)
    found, tokens = policy.on_trees(rollouts, mean, max_tokens=max_tokens)
    assert_equal(found, expected)
    assert tokens < 0.75 * sum(len(sample["tokens"]) for sample in rollouts)


@pytest.mark.long
def test_slices_on_2_and_4_ranks_give_the_gradients_of_samples(tmp_path: Path) -> None:
    """Both layouts and both means; the sum over the ranks of each group."""
    expected = {mean: one_by_one(ROLLOUTS, mean) for mean in ("token", "sample")}
    for of_rank in policy.gradients_of_ranks(tmp_path):
        for (_, _, mean), found in zip(CASES, of_rank, strict=True):
            assert_equal(found, expected[mean])


@pytest.mark.parametrize("labels", ["hf", "shifted"])
def test_log_probs_and_entropy_stand_at_their_own_tokens(labels: str) -> None:
    samples = {"tokens": [[1, 2, 3], [4, 5]], "loss_mask": [[0, 0, 1], [1, 1]]}
    (pack,) = pack_sequences(samples, num_packs=1, labels=labels)  # type: ignore[arg-type]
    torch.manual_seed(0)
    hidden = torch.randn(5, 4, dtype=torch.float64)
    weight = torch.randn(6, 4, dtype=torch.float64)
    every = (hidden @ weight.T).log_softmax(-1)
    log_probs, entropy = log_probs_and_entropy(hidden[None], weight, pack, chunk=2)
    expected = torch.tensor([0, 0, every[1, 3], 0, every[3, 5]])
    torch.testing.assert_close(log_probs, expected.double())
    each = -(every.exp() * every).sum(-1)
    torch.testing.assert_close(entropy, torch.tensor([0, 0, each[1], 0, each[3]]).double())
    shifted = pack.torch().labels_as("shifted")
    torch.testing.assert_close(log_probs, selective_log_probs(hidden, weight, shifted).roll(1))
