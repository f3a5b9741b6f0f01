"""Fields of a small batch, written out: positions, masks, padding, and samples in memory."""

from dataclasses import replace
from typing import Any

from tests.helpers.torch_models import skip_without

skip_without("torch")

import pytest  # noqa: E402
import torch  # noqa: E402

from packprep.loaders import (  # noqa: E402
    PackedBatch,
    batch_from_rows,
    context_slice,
    segment_means,
    to_axolotl,
    to_hf,
    to_llama_factory,
    to_seq_idx,
    to_trl,
)


def batch() -> PackedBatch:
    """A pack of documents of 3 and 1 tokens, and a pack of a document of 2."""
    first = {"input_ids": [5, 6, 7, 8], "seq_lengths": [3, 1]}
    return batch_from_rows([first, {"input_ids": [9, 10], "seq_lengths": [2]}]).torch()


def lists(fields: dict[str, Any]) -> dict[str, Any]:
    tensors = {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}
    return {name: value.tolist() for name, value in tensors.items()}


def test_positions_restart_and_boundaries_are_sums_of_lengths_without_a_mask() -> None:
    fields = to_hf(batch())
    assert lists(fields) == {
        "input_ids": [[5, 6, 7, 8, 9, 10]],
        "position_ids": [[0, 1, 2, 0, 0, 1]],
        "labels": [[-100, 6, 7, -100, -100, 10]],
        "cu_seq_lens_q": [0, 3, 4, 6],
        "cu_seq_lens_k": [0, 3, 4, 6],
        "seq_idx": [[0, 0, 0, 1, 2, 2]],
    }
    assert fields["cu_seq_lens_q"].dtype == torch.int32
    assert to_seq_idx(batch()).tolist() == [[0, 0, 0, 1, 2, 2]]
    assert (fields["max_length_q"], fields["use_cache"]) == (3, False)
    for adapt in (to_hf, to_trl, to_axolotl, to_llama_factory):
        assert "attention_mask" not in adapt(batch())
    assert batch().cu_seqlens.diff().tolist() == [3, 1, 2]  # xformers' from_seqlens takes these


def test_the_loss_may_be_a_sum_of_means_over_responses() -> None:
    values, mask = torch.tensor([1.0, 2, 3, 6, 8]), torch.tensor([0, 1, 1, 0, 1]).bool()
    means = segment_means(values, mask, torch.tensor([0, 3, 5]))
    assert means.tolist() == [2.5, 8]


def test_a_slice_of_tensors_is_that_of_arrays() -> None:
    rows = [{"input_ids": [*range(12)], "seq_lengths": [8, 4]}]
    made = batch_from_rows(rows)
    whole = replace(made, labels=made.labels_as("shifted"), label_kind="shifted")
    for rank, tokens in enumerate([[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]]):
        for batch in (whole, whole.torch()):
            part = context_slice(batch, rank, 2, "zigzag")
            assert part.tokens.tolist() == tokens
            assert part.labels.tolist() == [whole.labels[token] for token in tokens]


@pytest.mark.parametrize("mask", [[1, 0, 1], [1, 1], [0, 0, 1]])
def test_a_mask_that_does_not_end_a_row_is_refused(mask: list[int]) -> None:
    row = {"input_ids": [1, 2, 3], "attention_mask": mask}
    with pytest.raises(ValueError, match="only at the end of the row"):
        batch_from_rows([row], boundaries="eos", token=2)
