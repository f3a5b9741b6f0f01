"""Loss and gradients over packs, trees and slices are those over documents and samples."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.torch_models import skip_without

skip_without("torch")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from packprep.loaders import (  # noqa: E402
    log_probs_and_entropy,
    loss_weights,
    pack_sequences,
    segment_means,
    selective_log_probs,
)
from tests.helpers.examples import share_of_examples  # noqa: E402
from tests.loaders.samples import policy  # noqa: E402
from tests.loaders.samples.policy import CASES, ROLLOUTS, Gradients, on_packs, one_by_one  # noqa: E402


def split_loop(values: Any, mask: Any, cu: torch.Tensor) -> torch.Tensor:
    """The sum of sample means as trainers write it: a loop over the segments."""
    lengths = cu.diff().tolist()
    pieces = zip(values.split(lengths), mask.split(lengths), strict=True)
    means = [(value * kept).sum() / kept.sum().clamp(min=1) for value, kept in pieces]
    return torch.stack(means).sum()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_weights_and_segment_means_equal_the_loop(lengths: list[int], data: st.DataObject) -> None:
    cu = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    random = data.draw(st.randoms(use_true_random=False))
    values = torch.tensor([random.uniform(-5, 5) for _ in range(sum(lengths))], dtype=torch.float64)
    mask = torch.tensor([random.random() < 0.6 for _ in range(sum(lengths))])
    weights = loss_weights(cu, mask, "segment")
    assert weights.dtype == torch.float32
    assert weights.tolist() == loss_weights(cu.numpy(), mask.numpy(), "segment").tolist()
    expected = split_loop(values, mask, cu)
    torch.testing.assert_close((weights * values).sum(), expected, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(segment_means(values, mask, cu).sum(), expected)
    every = torch.ones_like(mask)
    torch.testing.assert_close(segment_means(values, None, cu).sum(), split_loop(values, every, cu))
    # The pieces of a document share its weight.
    ids = torch.tensor([data.draw(st.integers(0, 3)) for _ in lengths])
    shared = loss_weights(cu, every, "document", ids)
    of_arrays = loss_weights(cu.numpy(), every.numpy(), "document", ids.numpy())
    assert shared.tolist() == of_arrays.tolist()
    # A number counts segments one after another.
    by_two, pairs = loss_weights(cu, mask, 2, dtype=torch.float64), torch.arange(len(lengths)) // 2
    assert by_two.tolist() == loss_weights(cu.numpy(), mask.numpy(), 2, dtype=np.float64).tolist()
    torch.testing.assert_close(by_two.float(), loss_weights(cu, mask, "document", pairs))
    for document in set(ids.tolist()):
        of_document = shared[torch.repeat_interleave(ids, cu.diff()) == document]
        torch.testing.assert_close(of_document.sum(), torch.tensor(1.0))


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_log_probabilities_in_chunks_are_those_of_the_whole(chunk: int) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(65, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(40, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 40, (65,))
    labels[3] = -100
    picked = (hidden @ weight.T).log_softmax(-1)[torch.arange(65), labels.clamp(min=0)]
    whole = picked * (labels != -100)
    got = selective_log_probs(hidden, weight, labels, chunk=chunk)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, whole)
    upstream = torch.randn(65, dtype=torch.float64)
    ours, wanted = (torch.autograd.grad(each, [hidden, weight], upstream) for each in (got, whole))
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one, other)
    assert selective_log_probs(hidden.half(), weight.half(), labels).dtype == torch.float32


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
