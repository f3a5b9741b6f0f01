"""Rows of pieces: ids and mask as trainers make them, and builds equal to those of token ids."""

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from packprep import BuildConfig, build, pack_dataset
from packprep.chat.pieces.parts import render_pieces
from packprep.engines.tokenizer import load_tokenizer
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.sources.formats.row_plan import row_plan
from packprep.sources.row_text import as_rows
from packprep.support.errors import InputError
from packprep.tokens.encode import load_encoder
from tests.chat.test_build import spaced
from tests.helpers.corpus import one_line, save_tokenizer, texts, tiny_tokenizer, write_jsonl
from tests.helpers.errors import refused

Row = list[dict[str, Any]]
WORDS = st.sampled_from(["at ", "The c", "<s>", "</", "s>", "\u00f6", "\U0001f642", " "])
TEXTS = st.lists(WORDS, max_size=4).map("".join)
PIECES = st.tuples(st.one_of(TEXTS, st.lists(st.integers(0, 319), max_size=3)), st.booleans())


def pieces(*parts: tuple[str | list[int], bool]) -> Row:
    """A row of pieces."""
    names = ("token_ids" if isinstance(part, list) else "text" for part, _ in parts)
    return [{name: part, "train": on} for name, (part, on) in zip(names, parts, strict=True)]


def by_trainer(row: Row, tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """Ids and mask of each piece alone, as Axolotl's input_output makes them."""
    ids: list[int] = []
    mask: list[bool] = []
    for piece in row:
        own = piece.get("token_ids")
        own = tokenizer.encode(piece["text"], add_special_tokens=False).ids if own is None else own
        ids += own
        mask += [piece["train"]] * len(own)
    return ids, mask


def by_offsets(row: Row, tokenizer: Tokenizer) -> tuple[list[int], list[bool]]:
    """Ids and mask of neighbouring texts as one text: a token with a trained character is trained.

    A character of several bytes may be of several tokens.
    """
    ids, mask, text, trained = [], [], "", list[bool]()
    for piece in [*row, {"token_ids": [], "train": False}]:
        if "text" in piece:
            text, trained = text + piece["text"], trained + [piece["train"]] * len(piece["text"])
            continue
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids += [*encoding.ids, *piece["token_ids"]]
        mask += [any(trained[start:stop]) for start, stop in encoding.offsets]
        mask += [piece["train"]] * len(piece["token_ids"])
        text, trained = "", []
    return ids, mask


def encoded(rows: list[Row], tokenizer: Any, **options: Any) -> list[tuple[list[int], list[bool]]]:
    config = BuildConfig(segments_column="segments", engine="hf", **options)
    loaded = load_tokenizer(tokenizer, bos="none", eos="none")
    plan = row_plan(config.parsing, loaded.vocab_size)
    read = as_rows(pa.table({"segments": pa.array(map(json.dumps, rows), pa.string())}), plan)
    encoder = load_encoder(loaded, config.parsing, config.tokenizing, 0, 1)
    made = encoder.encode(read, np.arange(len(rows))).table.to_pylist()
    return [(row["tokens"], [label == 1 for label in row["labels"]]) for row in made]


@example([[("at ", False), ("", True), ("s>", False)]])  # no character is trained
@given(st.lists(st.lists(PIECES, max_size=5), min_size=1, max_size=3))
def test_pieces_have_the_ids_and_mask_of_each_alone_or_of_one_text(rows: Any) -> None:
    made = [pieces(*row) for row in rows]
    tokenizer = Tokenizer.from_str(tiny_tokenizer().to_str())  # other tests change the shared one
    assert encoded(made, tokenizer) == [by_trainer(row, tokenizer) for row in made]
    joined = encoded(made, tokenizer, join_pieces=True)
    assert joined == [by_offsets(row, tokenizer) for row in made]


@pytest.mark.parametrize("kind", ["always", "first", "Prepend", "ByteLevel"])
def test_a_space_before_a_text_is_before_each_piece_or_before_the_text(kind: str) -> None:
    row, tokenizer = pieces(("ab", False), ("ca", True), ([3], True), ("b", True)), spaced(kind)
    assert encoded([row], tokenizer) == [by_trainer(row, tokenizer)]
    assert encoded([row], tokenizer, join_pieces=True) == [by_offsets(row, tokenizer)]


BAD: dict[str, Any] = {
    "'s' is text but not JSON": "[",
    "'s' is an object, expected a list of pieces": "{}",
    "piece 0 is a number, expected an object with train, and text or token_ids": "[7]",
    "piece 0 has 'text', 'label', expected train": [{"text": "a", "label": True}],
    "piece 1 has 'train', expected train, and one of text": [
        {"text": "", "train": True},
        {"train": 1},
    ],
    "piece 0 has 'text', 'token_ids', 'train', exp": [
        {"text": "a", "token_ids": [], "train": True}
    ],
    "piece 0 has 1 as train, expected true or false": [{"text": "a", "train": 1}],
    "piece 0 has a list as text, expected text": [{"text": [], "train": True}],
    "piece 0 has 'ab' as token_ids, expected a list": [{"token_ids": "ab", "train": True}],
    "piece 0 has [True] as token_ids, expected a list": [{"token_ids": [True], "train": True}],
    "piece 0 has 320 in token_ids, expected ids from 0 to 319": [
        {"token_ids": [1, 320], "train": True}
    ],
    "piece 0 has -1 in token_ids": [{"token_ids": [-1], "train": False}],
}


@pytest.mark.parametrize("detail", BAD)
def test_a_bad_row_is_a_problem_that_names_the_piece(detail: str) -> None:
    cell = BAD[detail] if isinstance(BAD[detail], str) else json.dumps(BAD[detail])
    table = pa.table({"s": pa.array([cell, None, "[]"], pa.string())})
    first, null, empty = render_pieces(table, "s", 320, joined=False).to_pylist()
    assert detail in str(one_line(first["problem"]))
    assert first["text"] is None
    assert one_line(null["problem"]) == "null: 's' is null, expected a list of pieces"
    assert (empty["text"], empty["problem"]) == ("", None)


SEGMENTS: dict[str, Any] = {"segments_column": "segments", "max_length": 128}
ROWS = [
    pieces(
        (f"user {text}", False), (text[:40], True), ([7, 8, len(text) % 9], True), (" end", False)
    )
    for text in texts(30)
]


def columns_of(out: Path) -> list[dict[str, Any]]:
    """All packs of an output."""
    splits = PackedShards(out, split="train").manifest.splits
    return [
        {name: values.tolist() for name, values in pack.columns.items()}
        for split in splits
        for pack in PackedShards(out, split=split)
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"stride": 4, "max_length": 32},
        {"overflow": "truncate", "max_length": 16, "min_loss_tokens": 3},
        {"bos": "<s>", "eos": "</s>", "holdout": 0.3, "materialize": "index"},
        {"weights": (3, 1), "strategy": "wrapped"},
        {"join_pieces": True, "train_on": "all", "group_column": "set"},
        {"pair_columns": ("segments", "other"), "overflow": "truncate"},
    ],
)
def test_a_build_of_pieces_is_that_of_their_token_ids_and_mask(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    tokenizer = Tokenizer.from_str(tiny_tokenizer().to_str())
    make = by_offsets if "join_pieces" in more else by_trainer
    pieced, ids_rows = [], []
    for number, row in enumerate(ROWS):
        (ids, mask), other = make(row, tokenizer), by_trainer(ROWS[-number], tokenizer)
        pieced.append({"segments": row, "other": ROWS[-number], "set": number % 2})
        sides = {"segments": ids, "other": other[0], "set": number % 2}
        ids_rows.append(sides | {"m": [*map(int, mask)], "n": [*map(int, other[1])]})
    two, trains_all = "pair_columns" in more, more.get("train_on") == "all"
    common: dict[str, Any] = {"tokenizer": str(save_tokenizer(tmp_path / "tokenizer"))}
    common |= {"max_length": 128, "verify_engine": 1.0} | more
    named = "auto" if two else "segments"
    of_ids = common | {"join_pieces": False, "train_on": "assistant", "input_ids_column": named}
    of_ids |= {} if trains_all else {"labels_column": "m,n:mask" if two else "m:mask"}
    made: list[Any] = []
    for rows, options in ((pieced, common | {"segments_column": named}), (ids_rows, of_ids)):
        files = [
            write_jsonl(tmp_path / f"{len(made)}-{number}.jsonl", half)
            for number, half in enumerate((rows[:15], rows[15:]))
        ]
        out = tmp_path / f"out-{len(made)}"
        build(BuildConfig(sources=tuple(map(str, files)), output=str(out), **options))
        assert [*map(str, verify(out, level="full").findings)] == []
        made.append(columns_of(out))
    assert len(made[0]) > 1
    assert made[0] == made[1]


def test_every_format_gives_the_same_packs(tmp_path: Path) -> None:
    rows = [{"segments": row} for row in ROWS]
    write_jsonl(tmp_path / "a.jsonl", rows)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as arrow:
        arrow.write_table(table)
    with (tmp_path / "a.csv").open("w", newline="") as text:
        csv.writer(text).writerows([["segments"], *([json.dumps(row)] for row in ROWS)])
    tokenizer, made = str(save_tokenizer(tmp_path / "tokenizer")), []
    for name in ("jsonl", "parquet", "arrow", "csv"):
        source, out = str(tmp_path / f"a.{name}"), str(tmp_path / name)
        build(BuildConfig(sources=source, output=out, tokenizer=tokenizer, **SEGMENTS))
        made.append(columns_of(tmp_path / name))
    packed = pack_dataset(datasets.Dataset.from_list(rows), tokenizer, **SEGMENTS)
    assert made[1:] == made[:1] * 3
    assert packed["tokens"][:] == [pack["tokens"] for pack in made[0]]


def test_a_bad_row_stops_the_build_or_is_skipped(tmp_path: Path) -> None:
    source = write_jsonl(
        tmp_path / "a.jsonl", [{"segments": ROWS[0]}, {"segments": [{"text": "a"}]}]
    )
    options: dict[str, Any] = SEGMENTS | {"sources": str(source), "output": str(tmp_path / "out")}
    options["tokenizer"] = str(save_tokenizer(tmp_path / "tokenizer"))
    with refused(
        InputError, f"{source} row 1 (line 2): piece 0 has 'text', expected train, and one"
    ):
        build(BuildConfig(**options))
    build(BuildConfig(**options, on_error="skip"))
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["documents"]["skipped"] == {"bad_pieces": 1}
