"""Preference pairs: both sides are in one pack, cut and filtered together, with every strategy."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packprep import BuildConfig, build
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.packing.strategies import STRATEGIES
from packprep.support.errors import InputError, PackprepError
from packprep.windows.cut import cut_segments
from tests.helpers.command import run
from tests.helpers.corpus import (
    build_options,
    expected_ids,
    save_tokenizer,
    texts,
    tiny_tokenizer,
    write_jsonl,
)
from tests.helpers.errors import refused
from tests.helpers.examples import share_of_examples
from tests.helpers.zoo import Zoo

PAIRS: dict[str, Any] = {"pair_columns": ("chosen", "rejected"), "overflow": "drop"}


def cut(sides: list[tuple[int, int]], **options: Any) -> tuple[list[tuple[int, int, int]], Any]:
    config = BuildConfig(**{**PAIRS, "max_length": 8, **options})
    parts = np.array(sides, np.int32).reshape(-1, 2).T
    multiple = config.pad_segment_to_multiple
    segments, account = cut_segments(parts, 0, config.cutting, has_bos=False, multiple=multiple)
    assert segments.atom is segments.document
    pieces = zip(
        segments.document.tolist(), segments.start.tolist(), segments.count.tolist(), strict=True
    )
    return list(pieces), account


@pytest.mark.parametrize(
    ("sides", "options", "pieces", "dropped"),
    [
        ([(3, 2), (1, 1)], {}, [(0, 0, 3), (0, 3, 2), (1, 0, 1), (1, 1, 1)], {}),
        ([(5, 4), (4, 4)], {}, [(1, 0, 4), (1, 4, 4)], {"overflow": [9, 0]}),
        ([(12, 4)], {"overflow": "truncate"}, [(0, 0, 6), (0, 12, 2)], {}),
        ([(9, 2)], {"overflow": "truncate"}, [(0, 0, 6), (0, 9, 2)], {}),
        ([(12, 4)], {"overflow": "truncate:left"}, [(0, 6, 6), (0, 14, 2)], {}),
        ([(5, 3)], {"pad_segment_to_multiple": 4}, [], {"overflow": [8]}),
        (
            [(5, 3)],
            {"pad_segment_to_multiple": 4, "overflow": "truncate"},
            [(0, 0, 4), (0, 5, 3)],
            {},
        ),
        ([(3, 0), (0, 0), (2, 2)], {}, [(2, 0, 2), (2, 2, 2)], {"too_short": [3, 0, 0]}),
    ],
)
def test_a_pair_is_two_consecutive_segments_that_are_cut_and_dropped_together(
    sides: list[tuple[int, int]], options: dict[str, Any], pieces: Any, dropped: dict[str, Any]
) -> None:
    found, account = cut(sides, **options)
    assert found == pieces
    assert {name: account.dropped[name].tolist() for name in dropped} == dropped


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8),
    st.sampled_from(["drop", "truncate", "truncate:left"]),
    st.sampled_from([1, 2, 4]),
)
def test_every_token_is_kept_truncated_or_dropped_and_kept_pairs_fit(
    sides: list[tuple[int, int]], overflow: str, multiple: int
) -> None:
    pieces, account = cut(sides, overflow=overflow, pad_segment_to_multiple=multiple)
    lost = account.truncated + sum(account.dropped.values(), np.zeros(len(sides), np.int32))
    for row, (first, second) in enumerate(sides):
        counts = [length for document, _, length in pieces if document == row]
        assert sum(counts) + lost[row] == first + second
        assert len(counts) in (0, 2)
        assert sum(-(-length // multiple) * multiple for length in counts) <= 8


def rows_of(count: int) -> list[dict[str, str]]:
    sides = texts(2 * count, seed=3)
    return [
        {"chosen": sides[2 * row] or "x", "rejected": sides[2 * row + 1] or "y"}
        for row in range(count)
    ]


def sides_in(path: Path) -> dict[int, list[tuple[list[int], list[int] | None]]]:
    """Tokens and labels of the two sides of each pair, by row; both must be beside each other."""
    pairs: dict[int, list[tuple[list[int], list[int] | None]]] = {}
    for pack in PackedShards(path, verify=True):
        ids, sides = pack.columns["pair_ids"].tolist(), pack.columns["pair_sides"].tolist()
        assert sides == [0, 1] * (len(sides) // 2)
        assert ids[::2] == ids[1::2] == pack.columns["document_ids"].tolist()[::2]
        for row, (first, last) in zip(ids, pairwise(pack.cu_seqlens.tolist()), strict=True):
            labels = None if pack.labels is None else pack.labels[first:last].tolist()
            pairs.setdefault(row, []).append((pack.tokens[first:last].tolist(), labels))
    return pairs


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_both_sides_are_in_one_pack_whatever_the_strategy(tmp_path: Path, strategy: Any) -> None:
    rows = rows_of(60)
    segments = None if strategy == "balanced" else 8
    limits = {"strategy": strategy, "max_length": 2048, "max_segments_per_pack": segments}
    manifest = build(BuildConfig(**build_options(tmp_path, {"pairs.jsonl": rows}) | PAIRS | limits))
    out = tmp_path / "out"
    expected = expected_ids([text for row in rows for text in row.values()], tiny_tokenizer(), 0, 1)
    assert sides_in(out) == {
        row: [(expected[2 * row], None), (expected[2 * row + 1], None)] for row in range(60)
    }
    ledger = manifest.ledger
    assert ledger["tokens_in"] == ledger["tokens_packed"] == sum(map(len, expected))
    report = json.loads((out / "report.json").read_bytes())
    assert (report["documents"]["in"], report["tokens"]["bos_added"]) == (60, 120)
    if segments is not None:
        assert max(len(pack.cu_seqlens) - 1 for pack in PackedShards(out)) <= segments


def test_show_names_the_side_of_each_segment(zoo: Zoo) -> None:
    row = f"{zoo.source('pairs')} row 1"
    alone = run("show", zoo["pairs"], "--doc", f"{zoo.source('pairs')}:1").out
    assert [side for side in ("chosen", "rejected") if f"{row}, {side}\n" in alone] == [
        "chosen",
        "rejected",
    ]


ID_ROWS: list[dict[str, Any]] = [
    {"prompt_ids": [1, 2, 3], "chosen_ids": [4, 5], "rejected_ids": [6], "margin": 0.5},
    {"prompt_ids": [7, 8], "chosen_ids": [9], "rejected_ids": [10, 11], "margin": 1.5},
    {"prompt_ids": [], "chosen_ids": [12], "rejected_ids": [13], "margin": 2.5},
]
ID_PAIRS: dict[str, Any] = {
    "input_ids_column": "auto",
    "prompt_column": "prompt_ids",
    "pair_columns": "chosen_ids,rejected_ids",
    "vocab_size": 100,
    "overflow": "drop",
    "max_length": 64,
    "carry": "margin",
}


def build_ids(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    path.mkdir()
    source = write_jsonl(path / "pairs.jsonl", rows)
    settings = {**ID_PAIRS, **options, "sources": (str(source),), "output": str(path / "out")}
    build(BuildConfig(**{key: value for key, value in settings.items() if value is not None}))
    return path / "out"


def as_labels(ids: list[int], mask: list[int]) -> list[int]:
    """Labels of a segment: its first token has none, as no token predicts it."""
    labels = [token if kept else -100 for token, kept in zip(ids, mask, strict=True)]
    return [-100, *labels[1:]]


@pytest.mark.parametrize("given_as", ["labels", "mask", "both"])
def test_whole_sides_with_labels_or_a_mask_are_packed_as_their_parts_are(
    tmp_path: Path, given_as: str
) -> None:
    whole = []
    for row in ID_ROWS:
        values, prompt = {"margin": row["margin"]}, row["prompt_ids"]
        for side in ("chosen_ids", "rejected_ids"):
            values[side] = prompt + row[side]
            values[f"{side}_labels"] = [-100] * len(prompt) + row[side]
            values[f"{side}_mask"] = [0] * len(prompt) + [1] * len(row[side])
        whole.append(values)
    names = {
        f"{name}_column": f"chosen_ids_{kind},rejected_ids_{kind}"
        for name, kind in (("labels", "labels"), ("loss_mask", "mask"))
        if given_as in (kind, "both")
    }
    parts = build_ids(tmp_path / "parts", ID_ROWS)
    sides = build_ids(tmp_path / "sides", whole, prompt_column=None, **names)
    assert sides_in(sides) == sides_in(parts)
    [name] = [path.name for path in parts.glob("data-*")]
    assert (sides / name).read_bytes() == (parts / name).read_bytes()


@settings(max_examples=share_of_examples(20))
@given(
    st.lists(st.tuples(*[st.lists(st.integers(5, 99), max_size=9)] * 3), max_size=12),
    st.sampled_from([{}, {"eos": "</s>"}, {"bos": "<s>", "eos": "</s>"}]),
)
def test_any_pairs_of_token_ids_come_back_with_their_ends(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[list[int], list[int], list[int]]],
    ends: dict[str, str],
) -> None:
    path = tmp_path_factory.mktemp("pairs")
    tokenizer = save_tokenizer(path / "t")
    special = {name: int(tiny_tokenizer().token_to_id(text) or 0) for name, text in ends.items()}
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    rows = [*rows, ([5], [6], [7])]  # a build without documents is an error
    table = [dict(zip(names, row, strict=True)) | {"margin": 1.0} for row in rows]
    options = {"tokenizer": str(tokenizer), "vocab_size": None, "min_loss_tokens": 0, **ends}
    out = build_ids(path / "b", table, **options)
    expected = {}
    for number, (prompt, *answers) in enumerate(rows):
        sides = []
        for answer in answers:
            ids, mask = prompt + answer, [0] * len(prompt) + [1] * len(answer)
            if ids and "bos" in special:
                ids, mask = [special["bos"], *ids], [0, *mask]
            if ids and "eos" in special:
                ids, mask = [*ids, special["eos"]], [*mask, mask[-1]]
            sides.append((ids, as_labels(ids, mask) if ids else []))
        if all(ids for ids, _ in sides):
            expected[number] = sides
    assert sides_in(out) == expected
    assert [*verify(out, level="full").findings] == []


def test_a_bad_pair_of_token_ids_is_named_or_skipped(tmp_path: Path) -> None:
    bad = [*ID_ROWS[:2], {**ID_ROWS[2], "rejected_ids": [100]}]
    with refused(InputError, "row 2 (line 3): 'rejected_ids' has 100 at 0", "0 to 99"):
        build_ids(tmp_path / "a", bad)
    kept = sides_in(build_ids(tmp_path / "b", bad, on_error="skip"))
    assert kept == sides_in(build_ids(tmp_path / "c", ID_ROWS[:2]))
    lists = [{**row, "margin": [0.5]} for row in ID_ROWS]
    with pytest.raises(InputError, match="a pair has two sides, so carry a plain number per row"):
        build_ids(tmp_path / "d", lists)


def test_a_missing_side_is_named(tmp_path: Path) -> None:
    made = build_options(tmp_path, {"pairs.jsonl": rows_of(2)})
    with refused(PackprepError, "has no column 'other'; it has chosen, rejected"):
        build(BuildConfig(**made | PAIRS | {"pair_columns": "chosen,other"}))


def test_a_row_without_one_side_is_named(tmp_path: Path) -> None:
    rows = [{"chosen": "a", "rejected": "b"}, {"chosen": "a", "rejected": None}]
    with refused(InputError, "row 1 (line 2)", "no 'chosen' and 'rejected'"):
        build(BuildConfig(**build_options(tmp_path, {"pairs.jsonl": rows}) | PAIRS))
