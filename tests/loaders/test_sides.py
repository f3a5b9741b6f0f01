"""Preference pairs are read with both sides only where that is asked for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedLoader, PackedShards, batch_from_rows
from packprep.schemas import STANDARD_COLUMNS
from tests.helpers.tiny_shards import PLAIN, Row, row_of, write_output

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
    starts = {*row["cu_seqlens"][:-1]}
    row["labels"] = [
        token if token % 3 and place not in starts else -100
        for place, token in enumerate(row["tokens"])
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
    found = PackedLoader(pairs, sides="chosen", **options)
    for got, wanted in zip(found, PackedLoader(alone, sides="both", **options), strict=True):
        expected = fields_of(wanted)
        for name in {"pair_ids", "pair_sides"} - {*options.get("columns", ())}:
            expected.pop(name, None)
        assert fields_of(got) == expected


def test_a_loader_of_both_sides_adds_the_columns_of_pairs(shards: PackedShards) -> None:
    for columns in ([], ["pair_sides", "document_starts"]):
        batch = PackedLoader(shards, 3, shuffle=False, sides="both", columns=columns)[0]
        assert {*batch.extra} == {*columns, "pair_ids", "pair_sides"}
        assert batch.extra["pair_sides"].tolist() == [0, 1, 1, 0, 1, 0, -1, 0, 1]
    assert batch_from_rows([row_of_sides(PACKS[0])]).extra["pair_sides"].tolist() == [0, 1, 1, 0]


def test_a_loader_of_pairs_says_what_sides_may_be(shards: PackedShards, tmp_path: Path) -> None:
    write_output(tmp_path / "plain", {"train": [[row_of(0, 3)]]})
    plain = PackedShards(tmp_path / "plain")
    refused: list[tuple[PackedShards, Any, str]] = [
        (shards, None, "has preference pairs, .* pass sides='both' .* or sides='chosen'"),
        (shards, "rejected", "sides is 'rejected'; expected 'both', 'chosen' or None"),
        (plain, "both", "has no preference pairs; leave out sides='both'"),
    ]
    for of, sides, words in refused:
        with pytest.raises(ValueError, match=words):
            PackedLoader(of, 1, sides=sides)
    assert "sides='chosen'" in repr(PackedLoader(shards, 1, sides="chosen"))
