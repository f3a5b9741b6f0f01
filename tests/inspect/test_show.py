"""`show`: tokens as lines of text, with positions, boundaries and labels."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import build
from packprep.inspect.show import TextPiece, lines, pieces_as_text
from packprep.schemas import NO_LOSS
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, tiny_tokenizer, write_jsonl
from tests.helpers.files import config

SPECIAL = frozenset({0, 1})


def ids_of(text: str) -> list[int]:
    ids: list[int] = tiny_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def pieces(ids: list[int], labels: list[int] | None = None) -> list[TextPiece]:
    stored = None if labels is None else np.array(labels, np.int32)
    return list(pieces_as_text(np.array(ids, np.int32), tiny_tokenizer(), SPECIAL, stored))


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40))
def test_the_pieces_are_the_text_and_every_position_is_that_of_a_token(text: str) -> None:
    ids = ids_of(text)
    found = pieces(ids)
    assert "".join(piece.text for piece in found) == text
    assert [piece.position for piece in found] == sorted(piece.position for piece in found)
    assert not found or (found[0].position == 0 and found[-1].position < len(ids))


def test_tokens_that_are_part_of_a_character_are_shown_with_those_that_complete_it() -> None:
    ids = ids_of("🦊")
    assert len(ids) == 4
    assert [(piece.position, piece.text) for piece in pieces(ids)] == [(0, "🦊")]
    assert [piece.text for piece in pieces(ids[:3])] == ["�"]
    assert [piece.text for piece in pieces([*ids[:2], 1])][-1].endswith("</s>")


def test_a_change_of_training_within_a_character_is_not_hidden() -> None:
    ids = ids_of("🦊")
    found = pieces(ids, [NO_LOSS] * 3 + ids[3:])
    assert [(piece.text, piece.trained) for piece in found] == [("�", False), ("�", True)]


def test_control_characters_are_shown_and_line_feeds_end_a_line() -> None:
    found = pieces([0, *ids_of("a\n\nb\t\x1b[31mred\x9b"), 1])
    assert "".join(piece.text for piece in found) == "<s>a⏎⏎b→␛[31mred␦</s>"
    assert [piece.special for piece in (found[0], found[1], found[-1])] == [True, False, True]
    shown = ["".join(piece.text for piece in line) for line in lines(iter(found), 80)]
    assert shown == ["<s>a⏎", "⏎", "b→␛[31mred␦</s>"]


def test_lines_are_as_wide_as_the_terminal_and_wide_characters_count_twice() -> None:
    row = [TextPiece(position, "東京", True, False, False) for position in range(4)]
    assert [[piece.position for piece in line] for line in lines(iter(row), 10)] == [[0, 1], [2, 3]]
    alone = [[piece.position for piece in line] for line in lines(iter(row), 3)]
    assert alone == [[position] for position in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two documents in one pack, and one that is longer than a pack; and a row of ids."""
    folder = tmp_path_factory.mktemp("show")
    write_jsonl(folder / "a.jsonl", ["The cat sat.", "on\nthe mat", "x" * 50])
    write_jsonl(folder / "ids.jsonl", [{"input_ids": ids_of("The cat")}])
    save_tokenizer(folder / "tok")
    texts = {"sources": ["a.jsonl"], "tokenizer": "tok", "max_length": 32, "order": "input"}
    numbers = {"sources": ["ids.jsonl"], "input_ids_column": "input_ids", "vocab_size": 320}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        build(config(output="out", strategy="greedy", **texts))
        build(config(output="padded", strategy="greedy", pad_segment_to_multiple=16, **texts))
        build(config(output="ids", **numbers))
    return folder


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "60")
    return folder


def test_a_pack_is_printed_with_documents_positions_and_special_tokens(here: Path) -> None:
    result = run("show", "out", "--pack", 0)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "pack 0 of 3 packs of train: 16 of 32 tokens, 2 segments",
        "",
        "segment 0, tokens 0 to 7 of the pack: a.jsonl row 0",
        "   0  <s>The cat sat.</s>",
        "",
        "segment 1, tokens 8 to 15 of the pack: a.jsonl row 1",
        "   0  <s>on⏎",
        "   4  the mat</s>",
    ]


def test_raw_ids_need_no_tokenizer_and_head_shows_the_first_tokens(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = here / "out"
    lines = run("show", out, "--raw", "--head", 3).out.splitlines()
    assert lines[3].split() == ["0", "0", *map(str, ids_of("The cat")[:2])]
    assert lines[4] == "      and 5 more tokens"
    result = run("show", out)
    assert (result.code, result.out, "the tokenizer tok does not exist" in result.err) == (
        2,
        "",
        True,
    )
    assert "The cat" in run("show", out, "--tokenizer", here / "tok" / "tokenizer.json").out


def test_a_document_is_shown_wherever_it_is(here: Path) -> None:
    shown = run("show", "out", "--doc", "a.jsonl:2").out.splitlines()
    first, second = (line for line in shown if "segment" in line)
    assert first.endswith("tokens 0 to 31 of the pack: a.jsonl row 2")
    assert second.endswith(": a.jsonl row 2 from its token 32")
    segments = json.loads(run("show", "out", "--doc", 2, "--json").out)
    assert "".join(each["text"] for each in segments) == "<s>" + "x" * 50 + "</s>"


def test_what_is_not_trained_stands_in_brackets_where_there_is_no_colour(here: Path) -> None:
    lines = run("show", "padded", "--pack", 0).out.splitlines()
    assert lines[2].endswith("a.jsonl row 0, 8 of padding")
    assert lines[3] == "   0  ‹<s>›The cat sat.</s>"


def test_rows_that_were_ids_are_shown_as_ids_unless_a_tokenizer_is_given(here: Path) -> None:
    assert run("show", "ids").out.splitlines()[-1].split() == ["0", *map(str, ids_of("The cat"))]
    assert run("show", "ids", "--tokenizer", "tok").out.splitlines()[-1] == "   0  The cat"


def test_json_holds_the_tokens_labels_and_text_of_a_segment_without_its_padding(here: Path) -> None:
    first, second, *_ = json.loads(run("show", "padded", "--json").out)
    assert first["text"] == "<s>The cat sat.</s>"
    assert first["labels"] == [NO_LOSS, *first["tokens"][1:]]
    assert (second["row"], second["document"], second["start"]) == ("a.jsonl row 1", 1, 0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--pack 0 --doc 0", "--pack, --doc and --find exclude each other"),
        ("--segment 0 --doc 0", "--pack, --doc and --find exclude each other"),
        ("--pack 9", "split train has no pack 9; it has 3 packs, numbered from 0"),
        ("--doc 7", "there is no document 7"),
        ("--doc a.jsonl", "'a.jsonl' is not SOURCE:ROW"),
        ("--find 1 --doc 1", "--pack, --doc and --find exclude each other"),
        ("--rows --segment 99", "pack 0 has 2 segments, numbered from 0"),
        ("--rows --split test", "there is no split 'test'"),
        ("--rows --shard data-0.arrow", "split train has no shard"),
        ("--store x", "out is not an index, so it needs no token store"),
    ],
)
def test_wrong_usage_is_a_sentence(here: Path, line: str, words: str) -> None:
    result = run("show", "out", *line.split())
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"packprep: {words}")
