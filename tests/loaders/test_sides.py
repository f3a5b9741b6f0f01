"""Preference pairs are read with both sides only where that is asked for."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import loaders
from packprep.loaders import PackedLoader, PackedShards, batch_from_rows
from packprep.schemas import STANDARD_COLUMNS
from tests.helpers.tiny_shards import PLAIN, Row, write_output

from .test_shards import row_of

NAMES = ("labels", "segment_lengths", "pair_ids", "pair_sides")
COLUMNS = (*PLAIN, *(STANDARD_COLUMNS[name] for name in NAMES))
SEGMENT_COLUMNS = ("document_ids", "document_starts", "segment_lengths", "pair_ids", "pair_sides")
# Packs of segments: (pair, side, tokens), where side -1 is filler.
Segments = Sequence[tuple[int, int, int]]
PACKS: list[Segments] = [
    [(0, 0, 3), (0, 1, 4), (1, 1, 2), (1, 0, 5)],
    [(2, 1, 6), (2, 0, 1), (-1, -1, 3)],
    [(3, 0, 4), (3, 1, 4)],
]


def row_of_sides(segments: Segments) -> Row:
    """A pack of these segments, whose last token is padding where a segment has four."""
    row = dict(row_of(0, *(length for *_, length in segments)))
    row["document_ids"] = [pair for pair, *_ in segments]
    row["pair_ids"] = row["document_ids"]
    row["pair_sides"] = [side for _, side, _ in segments]
    row["segment_lengths"] = [
        0 if side < 0 else length - (length == 4) for _, side, length in segments
    ]
    row["tokens"] = [
        (7 * pair + 3 * side + place) % 31 + 1
        for pair, side, length in segments
        for place in range(length)
    ]
    row["labels"] = [token if token % 3 else -100 for token in row["tokens"]]
    starts = {*row["cu_seqlens"][:-1]}
    row["labels"] = [
        -100 if place in starts else label for place, label in enumerate(row["labels"])
    ]
    return row


def write(directory: Path, packs: Sequence[Segments]) -> PackedShards:
    rows = [row_of_sides(pack) for pack in packs]
    write_output(directory, {"train": [rows]}, COLUMNS, max_length=24)
    return PackedShards(directory)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> PackedShards:
    return write(tmp_path_factory.mktemp("sides") / "out", PACKS)


def fields_of(batch: Any) -> dict[str, Any]:
    names = ("tokens", "position_ids", "cu_seqlens", "labels", *SEGMENT_COLUMNS, "loss_weights")
    values = {name: getattr(batch, name, batch.extra.get(name)) for name in names}
    kept = {name: value.tolist() for name, value in values.items() if value is not None}
    return kept | {"max_seqlen": batch.max_seqlen, "kind": batch.label_kind}


@st.composite
def outputs(draw: st.DrawFn) -> list[Segments]:
    """Packs of pairs, each of them whole, with filler at the end of some."""
    packs, pair = list[Segments](), 0
    for count in draw(st.lists(st.integers(1, 3), min_size=1, max_size=4)):
        sides = [(pair + number, side) for number in range(count) for side in (0, 1)]
        pair += count
        order = draw(st.permutations(sides))
        pack = [(*side, draw(st.integers(1, 4))) for side in order]
        packs.append([*pack, (-1, -1, 2)] if draw(st.booleans()) else pack)
    return packs


SETTINGS: list[dict[str, Any]] = [
    {},
    {"labels": "shifted", "loss_weights": "segment"},
    {"labels": "none", "pad_multiple": 8},
    {"max_segments": 12, "loss_weights": "document"},
    {"remainder": "fill", "packs_per_batch": 3, "columns": ["pair_sides", "document_starts"]},
]


@given(packs=outputs(), settings=st.sampled_from(SETTINGS))
def test_chosen_batches_are_those_of_shards_without_the_rejected_sides(
    packs: list[Segments], settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("twins")
    chosen = [[segment for segment in pack if segment[1] != 1] for pack in packs]
    pairs, alone = write(folder / "pairs", packs), write(folder / "alone", chosen)
    options = {"packs_per_batch": 1, "shuffle": False, **settings}
    for got, wanted in zip(
        PackedLoader(pairs, sides="chosen", **options),
        PackedLoader(alone, sides="both", **options),
        strict=True,
    ):
        expected = fields_of(wanted)
        for name in {"pair_ids", "pair_sides"} - {*options.get("columns", ())}:
            expected.pop(name, None)
        assert fields_of(got) == expected


def test_a_loader_of_both_sides_adds_the_columns_of_pairs(shards: PackedShards) -> None:
    for columns in ([], ["pair_sides", "document_starts"]):
        batch = PackedLoader(shards, 3, shuffle=False, sides="both", columns=columns)[0]
        assert {*batch.extra} == {*columns, "pair_ids", "pair_sides"}
        assert batch.extra["pair_sides"].tolist() == [0, 1, 1, 0, 1, 0, -1, 0, 1]


def test_a_loader_of_pairs_says_what_sides_may_be(shards: PackedShards, tmp_path: Path) -> None:
    refused: list[tuple[PackedShards, Any, str]] = [
        (
            shards,
            None,
            f"{shards.path} has preference pairs, and a loss on both sides trains on the rejected "
            "answers; pass sides='both' for pair_log_probs, or sides='chosen' for batches of the "
            "chosen sides alone",
        ),
        (shards, "rejected", "sides is 'rejected'; expected 'both', 'chosen' or None"),
    ]
    write_output(tmp_path / "plain", {"train": [[row_of(0, 3)]]})
    plain = PackedShards(tmp_path / "plain")
    refused.append((plain, "both", f"{plain.path} has no preference pairs; leave out sides='both'"))
    for of, sides, sentence in refused:
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            PackedLoader(of, 1, sides=sides)
    assert "sides='chosen'" in repr(PackedLoader(shards, 1, sides="chosen"))


# Adapters that give no labels, and things that are no adapters of a batch.
WITHOUT_LABELS = {
    "to_seq_idx",
    "to_flex_block_mask",
    "to_block_sparse",
    "to_data_module",
    "to_iterable_dataset",
    "to_node",
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "to_hf_4d": {"config": None},
    "to_torchtitan": {"version": "0.3"},
}


def adapters() -> dict[str, Callable[[Any], Any]]:
    """Every function that gives a trainer labels of a batch or of rows."""
    names = {name for name in loaders.__all__ if name.startswith("to_")} - WITHOUT_LABELS
    return {
        name: partial(getattr(loaders, name), **ARGUMENTS.get(name, {})) for name in sorted(names)
    }


@pytest.mark.parametrize("name", adapters())
def test_every_adapter_refuses_both_sides_and_takes_the_chosen_ones(
    name: str, shards: PackedShards
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    adapter = adapters()[name]
    said = "gives a trainer labels of both sides of preference pairs, which would train on the"
    rows = [row_of_sides(PACKS[0])]
    both = PackedLoader(shards, 1, shuffle=False, sides="both")[0]
    if name == "to_trl_row":
        with pytest.raises(ValueError, match=f"to_trl_row {said}"):
            adapter(rows[0])
        return
    for batch in (both, both.torch(), rows):
        with pytest.raises(ValueError, match=f"this adapter {said}"):
            adapter(batch)
    chosen = PackedLoader(shards, 1, shuffle=False, sides="chosen")[0]
    adapter(chosen)
    adapter([row_of_sides([segment for segment in PACKS[0] if segment[1] != 1])])


def test_sources_of_other_loaders_refuse_pairs(shards: PackedShards) -> None:
    with pytest.raises(ValueError, match="MaxTextSource gives a trainer labels of both sides"):
        loaders.MaxTextSource(shards)
    with pytest.raises(ValueError, match="TorchtitanSource gives a trainer labels of both sides"):
        loaders.TorchtitanSource(path=str(shards.path)).build()


def test_the_arguments_of_a_model_have_no_labels_where_both_sides_are_asked_for(
    shards: PackedShards,
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    both = PackedLoader(shards, 1, shuffle=False, sides="both")[0]
    for rows in (both, [row_of_sides(PACKS[0])]):
        for fields in (
            loaders.to_hf(rows, sides="both"),
            loaders.to_flattening(rows, sides="both"),
            loaders.to_hf_4d(rows, None, sides="both"),
        ):
            assert "labels" not in fields
            assert np.array_equal(fields["input_ids"][0], both.tokens)
    assert batch_from_rows([row_of_sides(PACKS[0])]).extra["pair_sides"].tolist() == [0, 1, 1, 0]
