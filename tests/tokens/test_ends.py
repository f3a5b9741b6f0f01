"""Each document has one BOS and one EOS: those of the row, and else those of the build.

`verify` agrees with every build here, also where a row has its ends twice.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep.loaders import PackedShards
from packprep.schemas import read_manifest
from tests.helpers.command import done
from tests.helpers.corpus import save_tokenizer, tiny_tokenizer, write_jsonl

BOS, EOS = 0, 1


def built(folder: Path, rows: list[Any], *options: str) -> dict[int, list[list[int]]]:
    """Tokens of the documents of each row, by its number, of a build that `verify` finds sound."""
    source = write_jsonl(folder / "rows.jsonl", rows)
    tokenizer = save_tokenizer(folder / "tokenizer")
    fixed = ["--tokenizer", tokenizer, "--max-length", 64, "-q"]
    done("build", source, "-o", folder / "out", *fixed, *options)
    done("verify", folder / "out", "--level", "full")
    documents: dict[int, list[list[int]]] = {}
    for pack in PackedShards(folder / "out"):
        for segment in pack.segments():
            assert segment.document_id is not None
            documents.setdefault(segment.document_id, []).append(segment.tokens.tolist())
    return dict(sorted(documents.items()))


def test_ends_that_a_text_spells_are_its_own(tmp_path: Path) -> None:
    """A text of ends alone has no text, and is dropped as one that is too short."""
    texts = ["ab", "<s>ab", "ab</s>", "<s>ab</s>", "<s>a</s>b", "<s><s>ab</s></s>", "<s>", "</s>"]
    expected = ["<s>ab</s>"] * 4 + ["<s>a</s>b</s>", "<s><s>ab</s></s>"]
    found = built(tmp_path, [*texts, "", "<s></s>"], "--parse-special-tokens")
    decode = tiny_tokenizer().decode
    assert [decode(ids, skip_special_tokens=False) for [ids] in found.values()] == expected
    assert [*found] == [*range(6)]
    assert read_manifest(tmp_path / "out").data["ledger"]["dropped"] == {"too_short": 6}


def test_ends_that_are_not_parsed_are_text(tmp_path: Path) -> None:
    [[ids]] = built(tmp_path, ["<s>ab</s>"]).values()
    assert (ids[0], ids[-1], ids.count(BOS), ids.count(EOS)) == (BOS, EOS, 1, 1)
    assert len(ids) > 6


def test_one_token_that_is_bos_and_eos_is_written_on_both_sides(tmp_path: Path) -> None:
    rows = ["ab", "</s>ab", "ab</s>", "</s>ab</s>", "</s>a</s>b</s>"]
    found = built(tmp_path, rows, "--parse-special-tokens", "--bos", "</s>", "--eos", "</s>")
    decode = tiny_tokenizer().decode
    texts = [decode(ids, skip_special_tokens=False) for [ids] in found.values()]
    assert texts == ["</s>ab</s>"] * 4 + ["</s>a</s>b</s>"]


IDS = [[5, 6], [BOS, 5, 6], [5, 6, EOS], [BOS, 5, 6, EOS], [5, EOS, EOS], [EOS, 5, BOS]]


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (["--eos", "</s>"], [[*ids, *[EOS] * (ids[-1] != EOS)] for ids in IDS]),
        (["--bos", "<s>"], [[*[BOS] * (ids[0] != BOS), *ids] for ids in IDS]),
        ([], IDS),
    ],
)
def test_ends_among_token_ids_are_their_own(
    tmp_path: Path, ends: list[str], expected: list[list[int]]
) -> None:
    """Labels and values stay with their tokens; an added EOS is trained as the one before it."""
    rows = [
        {"ids": ids, "loss": [1] * (len(ids) - 1) + [number % 2], "at": [9] * len(ids)}
        for number, ids in enumerate(IDS)
    ]
    columns = ["--input-ids-column", "ids", "--labels-column", "loss:mask", "--carry", "at:int32"]
    found = built(tmp_path, rows, *columns, *ends, "--min-loss-tokens", "0")
    assert [ids for [ids] in found.values()] == expected
    for pack in PackedShards(tmp_path / "out"):
        values = pack.columns
        for first, last, document in zip(
            pack.cu_seqlens, pack.cu_seqlens[1:], values["document_ids"], strict=False
        ):
            own = IDS[document]
            added = len(expected[document]) - len(own)
            before, after = (added, 0) if "--bos" in ends else (0, added)
            at = [0] * before + [9] * len(own) + [0] * after
            loss = [1] * (len(own) - 1) + [document % 2] * (1 + after)
            mask = [0] * before + loss
            assert values["at"][first:last].tolist() == at
            trained = np.array(mask) == 1
            trained[0] = False
            assert (values["labels"][first:last] != -100).tolist() == trained.tolist()


def test_packed_rows_that_are_split_after_eos_get_no_second_one(tmp_path: Path) -> None:
    rows = [{"ids": [5, 6, EOS, 7, EOS, 8, 9]}, {"ids": [5, EOS]}]
    options = ["--input-ids-column", "ids", "--boundaries", "eos:1", "--eos", "</s>"]
    found = built(tmp_path, rows, *options)
    assert {row: sorted(parts) for row, parts in found.items()} == {
        0: [[5, 6, EOS], [7, EOS], [8, 9, EOS]],
        1: [[5, EOS]],
    }


def test_both_sides_of_a_pair_have_their_ends_once(tmp_path: Path) -> None:
    rows = [{"p": [5], "a": [6, EOS], "b": [7]}, {"p": [BOS, 5], "a": [6], "b": [7, EOS]}]
    options = ["--input-ids-column", "auto", "--pair-columns", "a,b", "--prompt-column", "p"]
    found = built(tmp_path, rows, *options, "--eos", "</s>", "--bos", "<s>")
    whole = [[BOS, 5, 6, EOS], [BOS, 5, 7, EOS]]
    assert {row: sorted(sides) for row, sides in found.items()} == {0: whole, 1: whole}


@pytest.mark.parametrize("joined", [[], ["--join-pieces"]])
def test_pieces_that_end_with_eos_get_no_second_one(tmp_path: Path, joined: list[str]) -> None:
    def row(*pieces: tuple[str | list[int], bool]) -> dict[str, object]:
        return {
            "pieces": [
                {"text" if isinstance(content, str) else "token_ids": content, "train": train}
                for content, train in pieces
            ]
        }

    rows = [
        row(("<s>a", False), ("b", True)),
        row(("<s>a", False), ("b</s>", True)),
        row(("a", False), ("b", True), ([EOS], False)),
    ]
    found = built(tmp_path, rows, "--segments-column", "pieces", "--eos", "</s>", *joined)
    decode = tiny_tokenizer().decode
    texts = [decode(ids, skip_special_tokens=False) for [ids] in found.values()]
    assert texts == ["<s>ab</s>", "<s>ab</s>", "ab</s>"]
    trained = {
        int(document): bool(pack.columns["labels"][last - 1] != -100)
        for pack in PackedShards(tmp_path / "out")
        for last, document in zip(pack.cu_seqlens[1:], pack.columns["document_ids"], strict=False)
    }
    assert trained == {0: True, 1: True, 2: False}


def test_a_merge_of_outputs_with_and_without_own_ends_is_sound(tmp_path: Path) -> None:
    for name, more in (("a", ["--parse-special-tokens"]), ("b", [])):
        (tmp_path / name).mkdir()
        built(tmp_path / name, ["<s><s>ab</s></s>", json.dumps(name)], *more)
    done("merge", tmp_path / "a" / "out", tmp_path / "b" / "out", "-o", tmp_path / "both")
    done("verify", tmp_path / "both")
