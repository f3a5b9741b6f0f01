"""Fields of a small batch, written out: positions, masks, padding, and samples in memory."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.torch_models import skip_without

skip_without("torch")

import torch  # noqa: E402

from packprep.next.loaders import (  # noqa: E402
    PackedBatch,
    batch_from_rows,
    pack_sequences,
    segment_means,
    to_axolotl,
    to_hf,
    to_hf_4d,
    to_llama_factory,
    to_padded,
    to_seq_idx,
    to_trl,
    unpack,
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
    assert (fields["max_length_q"], fields["use_cache"]) == (3, False)
    for adapt in (to_hf, to_trl, to_axolotl, to_llama_factory):
        assert "attention_mask" not in adapt(batch())
    assert batch().cu_seqlens.diff().tolist() == [3, 1, 2]  # xformers' from_seqlens takes these


def test_boundaries_are_found_from_the_end_of_documents() -> None:
    made = batch_from_rows([{"input_ids": [5, 2, 6, 7, 2, 8]}], boundaries="eos", token=2)
    assert made.cu_seqlens.tolist() == [0, 2, 5, 6]
    assert made.position_ids.tolist() == [0, 1, 0, 1, 2, 0]


def test_packs_are_rows_of_one_length() -> None:
    assert lists(to_padded(batch())) == {
        "input_ids": [[5, 6, 7, 8], [9, 10, 0, 0]],
        "position_ids": [[0, 1, 2, 0], [0, 1, 0, 1]],
        "labels": [[-100, 6, 7, -100], [-100, 10, -100, -100]],
    }
    numbers = to_padded(batch(), 6, mask="segments", padding_positions="zero")
    assert numbers["segment_ids"].tolist() == [[1, 1, 1, 2, 0, 0], [1, 1, 0, 0, 0, 0]]
    assert numbers["position_ids"].tolist() == [[0, 1, 2, 0, 0, 0], [0, 1, 0, 0, 0, 0]]
    counted = to_padded(batch(), positions="continue", attention_mask="segments")
    assert counted["position_ids"].tolist() == [[0, 1, 2, 3], [0, 1, 0, 1]]
    assert counted["attention_mask"].tolist() == [[1, 1, 1, 2], [1, 1, 0, 0]]
    single = to_padded(batch(), rows="segments", mask="padding")
    assert single["input_ids"].tolist() == [[5, 6, 7], [8, 0, 0], [9, 10, 0]]
    assert single["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    with pytest.raises(ValueError, match="no model can tell them apart"):
        to_padded(batch(), mask="padding")


def test_a_dense_mask_and_numbers_show_the_documents() -> None:
    numbers = to_seq_idx(batch())[0]
    sees = (numbers[:, None] == numbers).tril()
    assert sees.int().tolist()[3] == [0, 0, 0, 1, 0, 0]
    made: list[Any] = [
        to_llama_factory(batch(), mask_dtype=torch.float32)["attention_mask"],
        to_hf_4d(batch(), None, dtype=torch.float32)["attention_mask"],
    ]
    for mask in made:
        assert torch.equal(mask[0, 0] == 0, sees)
        assert set(mask[0, 0][~sees].tolist()) == {torch.finfo(torch.float32).min}
    rows = to_padded(batch(), mask="4d")["attention_mask"]
    assert (rows[0, 0] == 0).int().tolist()[3] == [0, 0, 0, 1]


RANKS = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=3)


@given(ranks=RANKS, most=st.integers(9, 20))
def test_samples_are_packed_within_a_budget_with_as_many_packs_on_every_rank(
    ranks: list[list[int]], most: int
) -> None:
    counts = set[int]()
    for lengths in ranks:
        samples = [
            {
                "tokens": [*range(length)],
                "response_length": length // 2,
                "advantages": [0.5] * (length // 2),
                "log_probs": [-1.0] * (length // 2),
                "reward": float(number),
            }
            for number, length in enumerate(lengths)
        ]
        packs = pack_sequences(samples, max_tokens=most, lengths_of_all=ranks)
        counts.add(len(packs))
        assert all(len(pack) <= most for pack in packs)
        real = [pack for pack in packs if (pack.document_ids >= 0).any()]
        assert all({"advantages", "log_probs", "reward"} <= {*pack.extra} for pack in real)
        again = unpack(packs)
        assert [[*row["tokens"]] for row in again] == [[*range(length)] for length in lengths]
        assert [row["reward"] for row in again] == [*range(len(lengths))]
    assert len(counts) == 1


def test_the_loss_may_be_a_sum_of_means_over_responses() -> None:
    values, mask = torch.tensor([1.0, 2, 3, 6, 8]), torch.tensor([0, 1, 1, 0, 1]).bool()
    means = segment_means(values, mask, torch.tensor([0, 3, 5]))
    assert means.tolist() == [2.5, 8]
