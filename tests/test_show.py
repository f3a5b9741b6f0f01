"""`show`: packs as text with the rows that they are from, of every kind of rows."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from packprep.cli.main import cli
from packprep.look.text import VISIBLE, pieces_of
from packprep.schemas.manifest import open_output
from packprep.support.errors import ConfigError, InputError

CHATS = ("in/openai.jsonl", "--tokenizer", "in/chat", "--messages", "messages")
CASES = {
    "text": ("in/a.jsonl", "in/long.jsonl", "--tokenizer", "in/tiny"),
    "held out": ("in/a.jsonl", "--tokenizer", "in/tiny", "--holdout", "20%", "--stride", "8"),
    "padded": ("in/a.jsonl", "--tokenizer", "in/tiny", "--pad-to-multiple", "8", "--seed", "3"),
    "chats": CHATS,
    "turns": (*CHATS, "--turns", "each"),
    "hf": (*CHATS, "--columns", "hf"),
    "shards": ("in/a.jsonl", "--tokenizer", "in/tiny", "-c", "shards.yaml"),
    "bare": ("in/a.jsonl", "--tokenizer", "in/tiny", "--columns", "position_ids"),
    "pairs": ("in/pairs.jsonl", "--tokenizer", "in/tiny", "--pairs", "chosen,rejected"),
    "ids": ("in/labels.jsonl", "--tokenizer", "320", "--ids", "ids,labels:labels"),
}
"""Builds by name: sources and options."""
LINE = re.compile(r"^ *(\d+)  (.*)$")

Show = Callable[..., str]


@pytest.fixture(scope="module")
def outputs(record_inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an output of each case, and the inputs `in`."""
    folder = tmp_path_factory.mktemp("shown")
    (folder / "in").symlink_to(record_inputs)
    (folder / "shards.yaml").write_text("shard_size: 4kB")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, options in CASES.items():
            command = ["build", *options, "-o", name, "--max-length", "64", "-q"]
            cli.main(command, standalone_mode=False)
    return folder


@pytest.fixture
def show(
    outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Show:
    """A function that gives what `show` prints."""
    monkeypatch.chdir(outputs)

    def command(*arguments: str) -> str:
        cli.main(["show", *arguments], standalone_mode=False)
        return capsys.readouterr().out

    return command


@pytest.mark.parametrize("name", [name for name in CASES if name != "ids"])
def test_the_text_of_a_pack_is_that_of_its_tokens(show: Show, name: str) -> None:
    """Every segment of some packs: its lines without brackets, each at its token."""
    decoder = Tokenizer.from_file("in/tiny/tokenizer.json")
    packs = [str(number) for number in range(8)]
    segments = json.loads(show(name, *packs, "--json"))
    blocks = [block for block in show(name, *packs).split("\n\n") if block.startswith("segment")]
    assert len(blocks) == len(segments)
    assert show(name) == show(name, "0") == show(name, "0", "0")
    assert not any(segment["trained"][0] for segment in segments)
    for block, segment in zip(blocks, segments, strict=True):
        whole = decoder.decode(segment["tokens"], skip_special_tokens=False)
        assert segment["text"] == whole
        title, *lines = block.splitlines()
        assert segment["row"] is None or segment["row"] in title
        matches = [LINE.fullmatch(line) for line in lines]
        assert all(matches)
        shown = "".join(match[2] for match in matches if match)
        assert shown.replace("‹", "").replace("›", "") == whole.translate(VISIBLE)
        for match in matches:
            assert match
            before = decoder.decode(segment["tokens"][: int(match[1])], skip_special_tokens=False)
            assert shown.replace("‹", "").replace("›", "").startswith(before.translate(VISIBLE))


def test_pieces_are_the_text_of_all_tokens(record_inputs: Path) -> None:
    decoder = Tokenizer.from_file(str(record_inputs / "gemma2" / "tokenizer.json"))

    @given(text=st.text(max_size=20))
    def law(text: str) -> None:
        ids = decoder.encode(text, add_special_tokens=False).ids
        trained = np.ones(len(ids), np.bool_)
        pieces = [*pieces_of(np.array(ids, np.int32), trained, decoder, frozenset())]
        text = decoder.decode(ids, skip_special_tokens=False)
        assert "".join(each.text for each in pieces) == text

    law()


@pytest.mark.parametrize("name", ["text", "held out", "padded"])
def test_the_segments_of_a_document_are_its_own_text(show: Show, name: str) -> None:
    decoder = Tokenizer.from_file("in/tiny/tokenizer.json")
    for file in (source for source in CASES[name] if source.endswith(".jsonl")):
        rows = [json.loads(line)["text"] for line in Path(file).read_text().splitlines()]
        for number in [number for number, text in enumerate(rows) if text][::9]:
            tokens, of_row = list[int](), f"{Path(file).name}:{number}"
            segments = json.loads(show(name, "--document", of_row, "--json"))
            for each in segments:  # of those with a stride, the last one's
                tokens = tokens[: each["start"]] + each["tokens"]
            text = decoder.decode(tokens, skip_special_tokens=False)
            assert text == f"<s>{rows[number]}</s>"
            assert {each["row"] for each in segments} == {f"{file}:{number}"}


@pytest.mark.parametrize("name", [name for name in CASES if name != "bare"])
def test_each_document_has_the_segments_that_packs_show(show: Show, name: str) -> None:
    every = list[dict[str, Any]]()
    for split, counts in open_output(name).manifest.splits.items():
        packs = map(str, range(counts["packs"]))
        every += json.loads(show(name, *packs, "--split", split, "--json"))
    for document in sorted({each["document"] for each in every})[::7]:
        listed = json.loads(show(name, "--document", str(document), "--json"))
        found = [each for each in every if each["document"] == document]
        assert sorted(listed, key=json.dumps) == sorted(found, key=json.dumps)


def test_tokens_of_prompts_are_apart_from_those_of_answers(show: Show) -> None:
    """What is between brackets is the question: of rows that are one segment, where none is cut."""
    rows = [json.loads(line) for line in Path("in/openai.jsonl").read_text().splitlines()]
    seen = 0
    for row in rows:
        segments = json.loads(show("chats", "--document", str(row["id"]), "--json"))
        if len(segments) > 1 or len(row["messages"]) > 2:
            continue
        shown = show("chats", "--document", str(row["id"]))
        text = "".join(match[2] for line in shown.splitlines() if (match := LINE.fullmatch(line)))
        asked, answered = (each["content"] for each in row["messages"])
        assert asked in "".join(re.findall("‹(.*?)›", text))
        assert re.sub("‹.*?›", "", text) == f"{answered}</s>"
        seen += 1
    assert seen


def test_titles_name_the_side_the_turn_and_the_first_token(show: Show) -> None:
    assert re.search(r": in/pairs.jsonl:\d+ rejected$", show("pairs"), re.M)
    assert re.search(r": in/openai.jsonl:\d+ turn \d+", show("turns"))
    shown = show("text", "--document", "long.jsonl:1")
    starts = [int(each.replace(",", "")) for each in re.findall("from its token (.*)", shown)]
    assert starts == [*range(64, 64 * (len(starts) + 1), 64)]
    padded = show("padded", *map(str, range(9)))
    assert re.search(r"tokens \d+ to \d+ of the pack: .*, \d of padding", padded)


def test_ids_are_shown_where_there_is_no_tokenizer(show: Show) -> None:
    [segment, *_] = json.loads(show("ids", "--json"))
    assert segment["text"] is None
    first = next(line for line in show("ids").splitlines() if LINE.fullmatch(line))
    assert f"‹ {segment['tokens'][0]}›" in first
    shown = show("ids", "--tokenizer", "in/tiny")
    assert not re.search(r"‹ \d+›", shown.splitlines()[3])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["text", "100000"], "split train has no pack 100,000"),
        (["text", "--split", "x"], "no split 'x'"),
        (["text", "--document", "a.jsonl:1000"], "no row a.jsonl:1000"),
        (["text", "--document", "b.jsonl:1"], "b.jsonl"),
        (["text", "--document", "4711"], "no row 4711"),
        (["text", "--document", "a"], "expected a number or FILE:ROW"),
        (["text", "3", "--document", "1"], "leave out PACK"),
        (["text", "--tokenizer", "in/gpt2"], "not the tokenizer of this output"),
        (["bare", "--document", "1"], "no document_ids"),
    ],
)
def test_what_is_not_there_is_refused(show: Show, arguments: list[str], words: str) -> None:
    with pytest.raises((ConfigError, InputError), match=re.escape(words)):
        show(*arguments)
