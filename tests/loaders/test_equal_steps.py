"""The gradient of a packed step is that of the unpacked step that `packprep equate` translates."""

import itertools
import random
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.torch_models import skip_without

skip_without("torch")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from packprep.inspect.contents import read_contents  # noqa: E402
from packprep.loaders import PackedLoader, loss_weights  # noqa: E402
from packprep.reports.recipe import LossMean, equal_recipe  # noqa: E402
from packprep.schemas import STANDARD_COLUMNS  # noqa: E402
from tests.helpers.examples import share_of_examples  # noqa: E402
from tests.helpers.tiny_shards import PLAIN, row_of, write_output  # noqa: E402
from tests.loaders.samples.policy import VOCABULARY, Policy, segment_mask  # noqa: E402
from tests.reports.test_recipe import recipe_of  # noqa: E402

Sequence = tuple[list[int], list[int]]  # tokens and labels
FEW = st.integers(1, 3)


def losses_of(model: Policy, tokens: Any, positions: Any, mask: Any) -> Any:
    """Loss of each token at its own place, [T]; 0 at the first, which nothing predicts."""
    every = model.head(model(tokens, positions, mask)[:-1]).log_softmax(-1)
    return torch.cat([torch.zeros(1).double(), -every.gather(1, tokens[1:, None])[:, 0]])


def unpacked(micro_batches: list[list[Sequence]], loss: LossMean) -> list[torch.Tensor]:
    """Gradient of a step, one sequence at a time, with the mean as its definition says."""
    model, sums, counts = Policy(), [], []
    for rows in micro_batches:
        for tokens, labels in rows:
            places = torch.arange(len(tokens))
            mask = places[:, None] >= places
            losses = losses_of(model, torch.tensor(tokens), places, mask)
            trained = torch.tensor(labels) != -100
            sums.append(losses[trained].sum())
            counts.append(int(trained.sum()))
    size = {"token": len(sums), "sequence": 1, "batch": len(micro_batches[0])}[loss]
    units = range(0, len(sums), size)
    means = [sum(sums[at : at + size]) / sum(counts[at : at + size]) for at in units]
    return [*torch.autograd.grad(sum(means) / len(means), [*model.parameters()])]


def packed(loaders: list[PackedLoader], mode: Any, packs: int) -> list[torch.Tensor]:
    """Sum over ranks and micro-batches of the gradients of weighted sums, by the sum of weights."""
    model, units = Policy(), 0.0
    for loader in loaders:
        (batch,) = loader
        trained = batch.labels != -100
        weights = loss_weights(
            batch.cu_seqlens, trained, mode, batch.document_ids, dtype=np.float64
        )
        np.testing.assert_allclose(batch.loss_weights, weights, rtol=1e-6)
        batch.loss_weights = weights
        units += weights.sum()
        for part in batch.torch().micro_batches(packs):
            mask = segment_mask(part)
            losses = losses_of(model, part.tokens, part.position_ids, mask)
            (losses * part.loss_weights).sum().backward()
    gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
    return [gradient / units for gradient in gradients]


@settings(max_examples=share_of_examples(2))
@given(FEW, FEW, FEW, st.sampled_from(["token", "sequence", "batch"]), st.data())
def test_the_packed_gradient_is_the_unpacked_one(
    micro: int, accumulation: int, ranks: int, loss: LossMean, data: st.DataObject
) -> None:
    draw = random.Random(data.draw(st.integers(0, 2**32)))
    of_rank, packs = micro * accumulation, data.draw(st.integers(1, micro * accumulation))
    sequences: list[Sequence] = []
    for _ in range(of_rank * ranks):
        tokens = [draw.randrange(VOCABULARY) for _ in range(draw.randrange(2, 8))]
        masked = [-100] + [-100 if draw.random() < 0.4 else token for token in tokens[1:-1]]
        sequences.append((tokens, [*masked, tokens[-1]]))
    # Each rank has its sequences in order, in as many packs as the others; ranks take turns.
    rows: list[Any] = [None] * (packs * ranks)
    for rank in range(ranks):
        cuts = sorted(draw.sample(range(1, of_rank), packs - 1))
        for pack, (first, end) in enumerate(itertools.pairwise([0, *cuts, of_rank])):
            start = rank * of_rank + first
            chosen = sequences[start : rank * of_rank + end]
            row = dict(row_of(start, *(len(tokens) for tokens, _ in chosen)))
            row["tokens"] = [token for tokens, _ in chosen for token in tokens]
            row["labels"] = [label for _, labels in chosen for label in labels]
            rows[pack * ranks + rank] = row
    columns = (*PLAIN, STANDARD_COLUMNS["labels"])
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "out"
        write_output(output, {"train": [rows]}, columns, max_length=64, vocab_size=VOCABULARY)
        recipe = equal_recipe(read_contents(output)[0], recipe_of(micro, accumulation, ranks), loss)
        assert recipe.packed.accumulation == packs
        mode: Any = recipe.loss_weights
        options: Any = {"shuffle": False, "world_size": ranks, "loss_weights": mode, "prefetch": 0}
        wanted = recipe.unpacked.rows_per_step
        loaders = [
            PackedLoader(output, sequences_per_step=wanted, rank=rank, **options)
            for rank in range(ranks)
        ]
        found = packed(loaders, mode, data.draw(st.integers(1, packs)))
    batches = [sequences[at : at + micro] for at in range(0, len(sequences), micro)]
    for one, other in zip(found, unpacked(batches, loss), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=0)


def test_the_mean_of_tokens_is_not_that_of_sequences_or_batches() -> None:
    rows: list[Sequence] = [([1, 2, 3, 4, 5, 6], [-100, 2, 3, 4, 5, 6]), ([1, 9], [-100, 9])]
    batches = [rows, [rows[1], rows[1]]]
    means: tuple[LossMean, ...] = ("token", "sequence", "batch")
    gradients = [torch.cat([g.flatten() for g in unpacked(batches, each)]) for each in means]
    for one, other in itertools.combinations(gradients, 2):
        assert float((one - other).abs().max()) > 1e-3
