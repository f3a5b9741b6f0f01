"""Loss over packs equals loss over documents.

Weights, segment means, log-probabilities, and their cost.
"""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.torch_models import batch_of, documents, skip_without, tiny_llama

skip_without("torch")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from packprep.loaders import loss_weights, segment_means, selective_log_probs, to_hf, unpack  # noqa: E402

LENGTHS = [5, 1, 17, 9, 30]


def split_loop(values: Any, mask: Any, cu: torch.Tensor) -> torch.Tensor:
    """The sum of sample means as trainers write it: a loop over the segments."""
    lengths = cu.diff().tolist()
    pieces = zip(values.split(lengths), mask.split(lengths), strict=True)
    return torch.stack(
        [(value * kept).sum() / kept.sum().clamp(min=1) for value, kept in pieces]
    ).sum()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_weights_and_segment_means_equal_the_loop(lengths: list[int], random: Any) -> None:
    cu = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    values = torch.tensor([random.uniform(-5, 5) for _ in range(sum(lengths))], dtype=torch.float64)
    mask = torch.tensor([random.random() < 0.6 for _ in range(sum(lengths))])
    expected = split_loop(values, mask, cu)
    weights = loss_weights(cu, mask, "segment")
    assert weights.dtype == torch.float32
    torch.testing.assert_close((weights * values).sum(), expected, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(segment_means(values, mask, cu).sum(), expected)
    unmasked = split_loop(values, torch.ones_like(mask), cu)
    torch.testing.assert_close(segment_means(values, None, cu).sum(), unmasked)
    assert weights.tolist() == loss_weights(cu.numpy(), mask.numpy(), "segment").tolist()


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_the_pieces_of_a_document_share_its_weight(lengths: list[int], data: st.DataObject) -> None:
    cu = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    ids = torch.tensor(
        data.draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    )
    mask = torch.ones(sum(lengths), dtype=torch.bool)
    weights = loss_weights(cu, mask, "document", ids)
    assert (
        weights.tolist() == loss_weights(cu.numpy(), mask.numpy(), "document", ids.numpy()).tolist()
    )
    per_token = torch.repeat_interleave(ids, cu.diff())
    for document in set(ids.tolist()):
        torch.testing.assert_close(weights[per_token == document].sum(), torch.tensor(1.0))


@pytest.mark.parametrize("mode", ["token", "segment", "document"])
def test_training_on_a_pack_equals_training_on_its_documents(tmp_path: Path, mode: Any) -> None:
    """Loss and gradients to 1e-6.

    Each document alone through the model, against the pack with weights.
    """
    from torch.nn.functional import cross_entropy

    batch = batch_of(tmp_path / "out", LENGTHS, labels="shifted", loss_weights=mode).torch()
    model = tiny_llama().double()
    losses = [
        cross_entropy(
            model(input_ids=torch.tensor([text])).logits[0, :-1],
            torch.tensor(text[1:]),
            reduction="sum",
        )
        for text in documents(LENGTHS)
        if len(text) > 1
    ]
    counts = [length - 1 for length in LENGTHS if length > 1]
    apart: Any = (
        sum(losses) / sum(counts)
        if mode == "token"
        else sum(map(torch.div, losses, counts)) / len(counts)
    )
    expected = torch.autograd.grad(apart, [*model.parameters()])

    fields = to_hf(batch)
    fields.pop("labels")
    logits = model(**fields).logits[0]
    each = cross_entropy(logits, batch.labels, reduction="none")
    together = (batch.loss_weights * each).sum() / batch.loss_weights.sum()
    torch.testing.assert_close(together, apart, atol=1e-6, rtol=0)
    for got, wanted in zip(
        torch.autograd.grad(together, [*model.parameters()]), expected, strict=True
    ):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-5)


def test_the_loss_of_transformers_is_the_mean_over_num_items(tmp_path: Path) -> None:
    batch = batch_of(tmp_path / "out", LENGTHS).torch()
    model = tiny_llama()
    by_model = model(**to_hf(batch)).loss
    summed = model(**to_hf(batch), num_items_in_batch=1).loss
    torch.testing.assert_close(summed / batch.num_items, by_model)
    assert batch.num_items == sum(LENGTHS) - len(LENGTHS)


def test_unpacked_values_are_those_of_each_document(tmp_path: Path) -> None:
    batch = batch_of(tmp_path / "out", LENGTHS, pad_to=512).torch()
    assert [values.tolist() for values in unpack(batch.tokens, batch)] == documents(LENGTHS)
    logits = torch.zeros(512, 3)
    assert [tuple(values.shape) for values in unpack(logits, batch)] == [
        (length, 3) for length in LENGTHS
    ]


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_log_probabilities_in_chunks_are_those_of_the_whole(chunk: int) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(65, 16, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(40, 16, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 40, (65,))
    labels[3] = -100
    whole = (hidden @ weight.T).log_softmax(-1)[torch.arange(65), labels.clamp(min=0)] * (
        labels != -100
    )
    got = selective_log_probs(hidden, weight, labels, chunk=chunk)
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, whole)
    upstream = torch.randn(65, dtype=torch.float64)
    for ours, wanted in zip(
        torch.autograd.grad(got, [hidden, weight], upstream),
        torch.autograd.grad(whole, [hidden, weight], upstream),
        strict=True,
    ):
        torch.testing.assert_close(ours, wanted)
    assert selective_log_probs(hidden.half(), weight.half(), labels).dtype == torch.float32


def test_weights_cost_a_small_part_of_a_split_loop() -> None:
    """CPU time of a weighted sum with gradient, against the loop, at 1,000 segments.

    Least of several, one thread.
    """
    segments = 1000
    random = np.random.default_rng(0)
    cu = torch.tensor([0, *np.cumsum(random.integers(1, 64, segments))], dtype=torch.int32)
    values = torch.randn(int(cu[-1]), requires_grad=True)
    mask = torch.rand(int(cu[-1])) < 0.8
    weights = loss_weights(cu, mask, "segment")

    def seconds(run: Any, repeats: int) -> float:
        times = []
        for _ in range(repeats):
            values.grad = None
            start = time.thread_time()
            run().backward()
            times.append(time.thread_time() - start)
        return min(times)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        loop = seconds(lambda: split_loop(values, mask, cu), 5)
        weighted = seconds(lambda: (weights * values).sum(), 30)
    finally:
        torch.set_num_threads(threads)
    assert loop / weighted > 50
