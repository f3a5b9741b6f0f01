"""Trees in training: loss and gradients are those of separate rows, and nothing else reads them."""

import dataclasses
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from packprep.loaders import PackedBatch, PackedLoader, PackedShards
from tests.helpers.torch_models import VOCABULARY, documents, skip_without, tiny_llama
from tests.helpers.trees import tree_output

skip_without("torch", "transformers")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.nn.functional import cross_entropy, scaled_dot_product_attention  # noqa: E402

from packprep.loaders import (  # noqa: E402
    selective_log_probs,
    to_block_sparse,
    to_flex_block_mask,
    to_hf_4d,
    tree_loss,
    tree_mask,
    unpack,
    verify_isolation,
)


def rows_and_ids() -> tuple[list[list[int]], list[int], list[list[bool]]]:
    """Answers to a prompt, turns of a conversation, a row that is a prefix of another, a copy."""
    prompt, other = documents([11, 6], seed=1)
    rows: list[tuple[int, list[int], list[int]]] = []  # id, context, answer
    rows += [(0, prompt, answer) for answer in documents([5, 3, 5, 2], seed=2)]
    conversation: list[int] = []
    for question, answer in zip(documents([4, 3, 5], 3), documents([3, 4, 2], 4), strict=True):
        rows.append((1, conversation + question, answer))
        conversation = conversation + question + answer
    rows += [(2, [], other)] * 2
    ids = [number for number, _, _ in rows]
    masks = [[False] * len(context) + [True] * len(answer) for _, context, answer in rows]
    return [context + answer for _, context, answer in rows], ids, masks


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    rows, ids, masks = rows_and_ids()
    path = tmp_path_factory.mktemp("trees") / "out"
    return PackedShards(tree_output(path, rows, ids, masks, max_length=32), verify=True)


def batch_of(shards: PackedShards, **options: Any) -> PackedBatch:
    return PackedLoader(shards, len(shards), shuffle=False, trees=True, **options)[0]


def separate(batch: PackedBatch) -> list[tuple[Any, Any]]:
    """Tokens and labels of each row, [1, n] each."""
    plain = batch.unshared().torch()
    return [
        (plain.tokens[None, first:last], plain.labels[None, first:last])
        for first, last in pairwise(plain.cu_seqlens.tolist())
    ]


def gradients(model: Any) -> list[Any]:
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return grads


def test_unshared_rows_are_the_rows_that_were_packed(shards: PackedShards) -> None:
    plain = batch_of(shards, pad_multiple=64).unshared()
    found = []
    for number, (first, last) in enumerate(pairwise(plain.cu_seqlens.tolist())):
        tokens, labels = (each[first:last].tolist() for each in (plain.tokens, plain.labels))
        assert plain.position_ids[first:last].tolist() == [*range(len(tokens))]
        found.append((int(plain.document_ids[number]), tokens, labels))
    expected = []
    for row, number, mask in zip(*rows_and_ids(), strict=True):
        labels = [token if keep else -100 for token, keep in zip(row, mask, strict=True)]
        expected.append((number, row, [-100, *labels[1:]]))
    assert sorted(found) == sorted(expected)
    alone, tree = unpack(plain.tokens, plain), unpack(batch_of(shards).tokens, batch_of(shards))
    assert [row.tolist() for row in alone] == [row.tolist() for row in tree]


def row_losses(batch: PackedBatch, logits_of: Any, reduction: str = "sum") -> tuple[Any, int]:
    """Sum of the losses of all rows, one by one, and the number of their labels."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for tokens, labels in separate(batch):
        logits, wanted = logits_of(tokens), labels[0, 1:]
        total = total + cross_entropy(logits[:-1], wanted, reduction=reduction)
        count += int((wanted != -100).sum())
    return total, count


def gpt2() -> Any:
    """A tiny GPT-2 in float64; unlike Llama's, its norms and positions are not float32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    config = GPT2Config(**sizes, attn_implementation="eager")
    return GPT2LMHeadModel(config).double().eval()


def llama() -> Any:
    return tiny_llama("eager").double()


def logits_of_trees(model: Any, batch: PackedBatch) -> Any:
    return model(**to_hf_4d(batch, model.config, dtype=model.dtype)).logits


def logits_alone(model: Any, tokens: Any) -> Any:
    return model(input_ids=tokens, use_cache=False).logits[0]


@pytest.mark.parametrize(("make", "limit"), [(gpt2, 1e-9), (llama, 1e-5)])
@pytest.mark.parametrize("padding", [{}, {"pad_multiple": 64}, {"max_segments": 64}])
def test_loss_and_gradients_are_those_of_separate_rows(
    shards: PackedShards, make: Callable[[], Any], limit: float, padding: dict[str, int]
) -> None:
    model, batch = make(), batch_of(shards, **padding).torch()
    loss = tree_loss(logits_of_trees(model, batch), batch, 16)
    loss.backward()
    of_trees = gradients(model)
    total, count = row_losses(batch, partial(logits_alone, model))
    assert count == int(batch.label_weights.sum()) == int(batch.rows["row_trained"].sum())
    (total / count).backward()
    assert abs(float(loss.detach() - total.detach() / count)) < limit
    for one, two in zip(of_trees, gradients(model), strict=True):
        assert (one - two).abs().max() < limit
    assert max(each.abs().max() for each in of_trees) > 1e-3


@pytest.mark.parametrize("mode", ["token", "segment", "document"])
def test_weights_count_rows(shards: PackedShards, mode: Any) -> None:
    batch, model = batch_of(shards, loss_weights=mode), llama()
    loss = tree_loss(logits_of_trees(model, batch.torch()), batch)
    reduction = "sum" if mode == "token" else "mean"  # the turns of a row are documents
    expected, _ = row_losses(batch, partial(logits_alone, model), reduction)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_log_probs_of_trees_are_those_of_rows(shards: PackedShards) -> None:
    batch = batch_of(shards).torch()
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(len(batch), 8, generator=generator)
    weight = torch.randn(VOCABULARY, 8, generator=generator)
    found = selective_log_probs(hidden, weight, batch.labels, 16, batch.previous)
    for token in range(len(batch)):
        label, before = int(batch.labels[token]), int(batch.previous[token])
        expected = 0.0
        if label != -100:
            expected = float((hidden[before] @ weight.T).log_softmax(0)[label])
        assert float(found[token]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_sees_what_the_dense_mask_lets_it_see(shards: PackedShards) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    batch = batch_of(shards, pad_multiple=64).torch()
    q, k, v = torch.randn(3, 1, 2, len(batch), 16, generator=torch.Generator().manual_seed(0))
    block_mask = to_flex_block_mask(batch)
    flex = flex_attention(q, k, v, block_mask=block_mask)
    dense = scaled_dot_product_attention(q, k, v, attn_mask=tree_mask(batch))
    assert torch.allclose(flex, dense, atol=1e-5)
    found, back = (to_block_sparse(batch, transposed=transposed) for transposed in (False, True))
    of_flex = block_mask.as_tuple()[2:10]
    for expected, tensor in zip(of_flex, [*found.values(), *back.values()], strict=True):
        assert tensor.tolist() == expected.tolist()


@pytest.mark.parametrize("block_size", [(1, 1), (4, 4), (8, 4), (4, 8), (7, 5), (128, 128)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("padding", [{}, {"pad_multiple": 64}])
def test_blocks_are_those_of_the_dense_mask(
    shards: PackedShards, block_size: tuple[int, int], transposed: bool, padding: dict[str, int]
) -> None:
    batch = batch_of(shards, **padding)
    mask = tree_mask(batch)
    found = to_block_sparse(batch, block_size, transposed=transposed)
    assert {tensor.dtype for tensor in found.values()} == {torch.int32}
    total, (rows, columns) = len(batch), block_size
    sizes = (columns, rows) if transposed else (rows, columns)
    lines = {"mask": list[list[int]](), "full": list[list[int]]()}
    for first in range(0, total, sizes[0]):
        for numbers in lines.values():
            numbers.append([])
        for number, second in enumerate(range(0, total, sizes[1])):
            query, key = (second, first) if transposed else (first, second)
            block = mask[query : query + rows, key : key + columns]
            if block.any():
                whole = block.all() and block.numel() == rows * columns
                lines["full" if whole else "mask"][-1].append(number)
    for name, expected in lines.items():
        counts, numbers = found[f"{name}_block_cnt"], found[f"{name}_block_idx"]
        assert counts.shape == (1, 1, -(-total // sizes[0]))
        assert numbers.shape == (*counts.shape, -(-total // sizes[1]))
        used = zip(numbers[0, 0], counts[0, 0].tolist(), strict=True)
        assert [line[:count].tolist() for line, count in used] == expected


def test_isolation_of_trees(shards: PackedShards) -> None:
    model = tiny_llama("sdpa")
    result = verify_isolation(model, batch_of(shards))
    assert result.isolated, result
    assert result.leaking > 0.1


def detached(parents: np.ndarray) -> np.ndarray:
    """The last child of a node loses its parent: it does not see what it must."""
    parents[np.flatnonzero(parents >= 0)[-1]] = -1
    return parents


def adopted(parents: np.ndarray) -> np.ndarray:
    """A child becomes a child of its sibling: it sees what it must not."""
    child = next(n for n in range(1, len(parents)) if 0 <= parents[n] < n - 1)
    parents[child] = child - 1
    return parents


@pytest.mark.parametrize("wrong", [detached, adopted])
def test_a_wrong_parent_is_reported(
    shards: PackedShards, wrong: Callable[[np.ndarray], np.ndarray]
) -> None:
    def inputs(batch: PackedBatch) -> dict[str, Any]:
        parents = wrong(batch.numpy().segment_parents.copy())
        changed = dataclasses.replace(batch.numpy(), segment_parents=parents)
        return to_hf_4d(changed.torch(), tiny_llama().config)

    result = verify_isolation(tiny_llama("sdpa"), batch_of(shards), inputs=inputs)
    assert not result.isolated
    assert "do not see exactly their path" in str(result)
