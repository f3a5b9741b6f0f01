"""Trees in the formats of other trainers: each row is a segment of its own."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.exports.export import export
from packprep.inspect.verify import verify
from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import read_manifest
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.corpus import write_jsonl
from tests.helpers.examples import share_of_examples
from tests.helpers.export_readers import READERS, ReadPack
from tests.helpers.planted import plant
from tests.helpers.trees import ANSWERS, Window, answer_rows, tree_output, windows
from tests.helpers.zoo import Zoo

OPTIONS: dict[str, Any] = {"vocab_size": 400, "max_length": 64, "share_prefixes": 4}


def built(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    source = write_jsonl(folder / "a.jsonl", rows)
    build(BuildConfig(sources=(str(source),), output=str(folder / "in"), **OPTIONS, **options))
    return folder / "in"


IDS: dict[str, Any] = {
    "input_ids_column": "ids",
    "group_prefix": "prompt",
    "carry": ("weights:float32", "quality"),
}
MASKED = IDS | {"loss_mask_column": "mask"}


def rows_of(packs: list[ReadPack]) -> list[tuple[list[int], list[int]]]:
    """Tokens and labels of all segments, sorted."""
    return sorted(
        (pack.tokens[first:last], pack.labels[first:last])
        for pack in packs
        for first, last in pairwise(pack.cu_seqlens)
    )


def rows_read(source: Path) -> list[tuple[list[int], list[int]]]:
    """Tokens and labels of the rows that the loader gives, sorted."""
    shards = PackedShards(source)
    plain = PackedLoader(shards, len(shards), shuffle=False, trees=True)[0].unshared()
    pack = ReadPack(plain.tokens.tolist(), plain.cu_seqlens.tolist(), plain.labels.tolist())
    return rows_of([pack])


@pytest.mark.parametrize("to", sorted(READERS))
def test_every_format_has_the_rows_of_the_loader(to: str, zoo: Zoo, tmp_path: Path) -> None:
    source, out = zoo["trees"], tmp_path / "out"
    if to == "megatron":  # which has no place for labels
        source = built(tmp_path, answer_rows(40), **IDS)
    result = export(source, str(out), to, unshared=True)
    packs = READERS[to](out, "train")
    assert rows_of(packs) == rows_read(source)
    sizes = [len(pack.tokens) for pack in packs]
    assert sum(sizes) > read_manifest(source).num_tokens
    assert max(sizes) <= 64
    assert sum(sizes) > 0.85 * 64 * len(sizes)  # packed again, window by window
    assert result.data["unshared"] is True
    counts = {"packs": len(packs), "segments": 40 * ANSWERS, "tokens": sum(sizes), "padding": 0}
    assert result.splits["train"] == counts
    verdict = verify(out)
    assert (verdict.sound, verdict.packs, verdict.tokens) == (True, len(packs), sum(sizes))


def packs_in(source: Path, out: Path) -> list[dict[str, Any]]:
    """The packs of an export to Parquet."""
    export(source, str(out), "parquet", unshared=True)
    files = sorted((out / "train").iterdir())
    return [pack for path in files for pack in pq.read_table(path).to_pylist()]


def test_parquet_has_the_columns_of_each_row(zoo: Zoo, tmp_path: Path) -> None:
    data, found = answer_rows(40), []
    for pack in packs_in(zoo["trees"], tmp_path / "out"):
        assert set(pack) == {
            *("tokens", "position_ids", "cu_seqlens", "document_ids", "document_starts"),
            *("labels", "weights", "quality"),
        }
        for segment, (first, last) in enumerate(pairwise(pack["cu_seqlens"])):
            found.append(pack["document_ids"][segment])
            row = data[found[-1]]
            pairs = zip(row["ids"], row["mask"], strict=True)
            assert {name: pack[name][first:last] for name in ("tokens", "labels", "weights")} == {
                "tokens": row["ids"],
                "labels": [token if mask else -100 for token, mask in pairs],
                "weights": row["weights"],
            }
            assert pack["position_ids"][first:last] == [*range(last - first)]
            assert pack["quality"][segment] == row["quality"]
            assert pack["document_starts"][segment] == 0
    assert sorted(found) == [*range(len(data))]


@settings(max_examples=share_of_examples(4))
@given(window=windows(), max_length=st.integers(2, 24), shared=st.integers(1, 3))
def test_any_trees_arrive_as_their_rows(
    window: Window, max_length: int, shared: int, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    options: dict[str, Any] = {
        "max_length": max_length,
        "share_prefixes": shared,
        "min_loss_tokens": 0,
    }
    source = tree_output(folder / "in", *window, **options)
    if not len(PackedShards(source)):
        return
    export(source, str(folder / "out"), "trl", unshared=True)
    packs = READERS["trl"](folder / "out", "train")
    assert max(len(pack.tokens) for pack in packs) <= max_length
    assert rows_of(packs) == rows_read(source)


def test_groups_stay_apart_and_packs_keep_their_most_segments(tmp_path: Path) -> None:
    data = answer_rows(40)
    source = built(tmp_path, data, **MASKED, group_column="set", max_segments_per_pack=5)
    packs = packs_in(source, tmp_path / "out")
    assert sum(len(pack["document_ids"]) for pack in packs) == len(data)
    for pack in packs:
        assert len({data[row]["set"] for row in pack["document_ids"]}) == 1
        assert len(pack["document_ids"]) <= 5


def test_sides_of_a_pair_stay_in_one_pack(tmp_path: Path) -> None:
    draw, rows = random.Random(0), []

    def ids(least: int, most: int) -> list[int]:
        return [draw.randrange(3, 400) for _ in range(draw.randrange(least, most))]

    for _ in range(60):
        prompt = ids(0, 12)  # some are too short to share
        rows.append({"chosen": prompt + ids(1, 18), "rejected": prompt + ids(1, 18)})
    pairs = ("chosen", "rejected")
    source = built(tmp_path, rows, input_ids_column="auto", pair_columns=pairs, overflow="error")
    found = []
    for pack in packs_in(source, tmp_path / "out"):
        places = list(zip(pack["pair_ids"], pack["pair_sides"], strict=True))
        in_pack = sorted({row for row, _ in places})
        assert sorted(places) == [(row, side) for row in in_pack for side in (0, 1)]
        found += in_pack
        for (row, side), (first, last) in zip(places, pairwise(pack["cu_seqlens"]), strict=True):
            assert pack["tokens"][first:last] == rows[row][pairs[side]]
    assert sorted(found) == [*range(60)]


def test_a_wrong_parent_is_an_error_that_names_its_pack(zoo: Zoo, tmp_path: Path) -> None:
    source = zoo.copy("trees", tmp_path)

    def edit(packs: list[dict[str, Any]]) -> None:
        packs[0]["segment_parents"][1] = 7

    plant(source, edit)
    with pytest.raises(FormatError, match=r"pack 0 segment 1: segment_parents has 7; expected -1"):
        export(source, str(tmp_path / "out"), "npy", unshared=True)


def test_trees_need_unshared_and_other_outputs_refuse_it(zoo: Zoo, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has trees, .* give unshared to write each row with"):
        export(zoo["trees"], str(tmp_path / "out"), "trl")
    with pytest.raises(ConfigError, match=r"has no trees, .* leave out unshared"):
        export(zoo["text"], str(tmp_path / "out"), "trl", unshared=True)
    line = ("export", zoo["trees"], "--to", "npy", "-o", tmp_path / "out", "--unshared")
    result, again = run(*line), run(*line)
    assert (result.code, f"{40 * ANSWERS} segments" in result.out) == (0, True)
    assert "nothing to do" in again.err
