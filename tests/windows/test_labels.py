"""Labels of rows reach the loss: packs have the same loss as their rows alone."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import BuildConfig, build
from packprep.loaders import PackedLoader, PackedShards, batch_from_rows, to_hf
from packprep.packing.kernels.gather import Pointers
from packprep.windows.labels import Labels, proportional
from tests.helpers.corpus import build_options
from tests.helpers.torch_models import VOCABULARY, documents, skip_without, tiny_llama


def labels_of(values: list[int], lengths: list[int], dtype: Any) -> Labels:
    return Labels(values=Pointers.into(np.array(values, dtype), np.cumsum([0, *lengths[:-1]])))


@pytest.mark.parametrize(
    ("dtype", "values"), [(np.int8, [0, 1, 0, 0, 1]), (np.int32, [-100, 0, -100, -100, 5])]
)
def test_trained_tokens_are_counted_in_labels_and_in_masks(dtype: Any, values: list[int]) -> None:
    labels = labels_of(values, [2, 1, 2], dtype)
    runs = [
        np.array(column, np.int32)
        for column in ([0, 0, 1, 2, 2], [0, 1, 0, 1, 0], [2, 1, 1, 1, -3])
    ]
    assert labels.count(*runs).tolist() == [1, 1, 0, 1, 0]


def test_the_turn_that_holds_a_token_is_a_prompt_and_its_response() -> None:
    labels = labels_of([0, 0, 1, 0, 1, 1, 0, 0, 0, 1], [7, 3], np.int8)
    lengths = np.array([7, 3], np.int32)
    found = [[turn.tolist() for turn in labels.turns_at(lengths, most)] for most in (0, 2, 3, 5, 6)]
    assert [[turn[0] for turn in turns] for turns in found] == [
        [0, 2, 3],
        [0, 2, 3],
        [3, 4, 6],
        [3, 4, 6],
        [6, 7, 7],
    ]
    assert [turn[1] for turn in found[0]] == [0, 2, 3]


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [(90, 30, 45), (10, 90, 10), (90, 10, 50), (60, 60, 30)],
    ids=["both are cut", "a short prompt stays whole", "a short response stays whole", "halves"],
)
def test_the_longer_side_is_cut_or_both_in_proportion(source: int, target: int, kept: int) -> None:
    assert proportional(np.array([source], np.int32), np.array([target], np.int32), 60)[0] == kept


def build_labelled(
    folder: Path, ids: list[list[int]], labels: list[list[int]], **options: Any
) -> None:
    rows = [{"ids": row, "l": of_row} for row, of_row in zip(ids, labels, strict=True)]
    named = {"input_ids_column": "ids", "labels_column": "l", "tokenizer": None}
    build(BuildConfig(**build_options(folder, {"rows.jsonl": rows}) | named | options))


@pytest.mark.parametrize("way", ["loader", "rows"])
def test_the_loss_over_packs_is_the_sum_of_the_rows_losses(tmp_path: Path, way: str) -> None:
    skip_without("torch", "transformers")
    import datasets
    import torch

    chance = random.Random(0)
    ids = documents([chance.randint(2, 40) for _ in range(60)])
    labels = [[token if chance.random() < 0.5 else -100 for token in row] for row in ids]
    build_labelled(tmp_path, ids, labels, vocab_size=VOCABULARY, pad_segment_to_multiple=4)
    model = tiny_llama()

    def loss(fields: dict[str, Any]) -> float:
        """Sum of the token losses; the model shifts the labels itself."""
        number = int((fields["labels"][:, 1:] != -100).sum())
        return float(model(**fields).loss) * number if number else 0.0

    with torch.no_grad():
        expected = sum(
            loss({"input_ids": torch.tensor([row_ids]), "labels": torch.tensor([row_labels])})
            for row_ids, row_labels in zip(ids, labels, strict=True)
        )
        if way == "loader":
            batches: list[Any] = [*PackedLoader(PackedShards(tmp_path / "out"), 1)]
        else:
            rows = datasets.load_from_disk(str(tmp_path / "out"))
            batches = [batch_from_rows([row]) for row in rows]
        assert len(batches) > 10
        packed = sum(loss(to_hf(batch)) for batch in batches)
    assert packed == pytest.approx(expected, rel=1e-5)
    trained = sum(label != -100 for row in labels for label in row[1:])
    assert sum(batch.num_items for batch in batches) == trained


def test_labels_on_disk_need_no_reader_that_knows_where_documents_begin(tmp_path: Path) -> None:
    build_labelled(tmp_path, [[5, 6, 7], [8, 9]], [[5, 6, 7], [8, 9]], vocab_size=10, order="input")
    [pack] = PackedShards(tmp_path / "out")
    assert pack.labels is not None
    assert pack.labels.tolist() == [-100, 6, 7, -100, 9]
