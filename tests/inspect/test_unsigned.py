"""Datasets that TRL or others packed: the invariants are checked, and every defect is named."""

from pathlib import Path
from typing import Any

import datasets
import pytest

from packprep.inspect.verify import verify
from packprep.support.errors import InputError
from tests.helpers.errors import refused

ROWS = {
    "input_ids": [[1, 10, 2, 1, 20, 21, 22, 2], [1, 30, 2]],
    "seq_lengths": [[3, 5], [3]],
    "labels": [[-100, 10, 2, -100, 20, 21, 22, 2], [-100, 30, 2]],
    "completion_mask": [[0, 1, 1, 0, 1, 1, 1, 1], [0, 1, 1]],
}

UNKNOWN = "digests, documents, BOS, EOS and the ledger: there is no manifest"


def saved(folder: Path, **columns: Any) -> Path:
    datasets.Dataset.from_dict({**ROWS, **columns}).save_to_disk(folder / "packed")
    return folder / "packed"


def found(path: Path, **options: Any) -> list[str]:
    return [str(finding) for finding in verify(path, **options).findings]


@pytest.mark.long
def test_what_trl_packs_is_sound(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    rows = datasets.Dataset.from_dict(
        {"input_ids": [[number] * length for number, length in enumerate([5, 3, 9, 1])]}
    )
    trl.pack_dataset(rows, 8, "bfd").save_to_disk(tmp_path / "packed")
    verdict = verify(tmp_path / "packed", vocab_size=4)
    assert verdict.sound, [str(finding) for finding in verdict.findings]
    assert (verdict.tokens, verdict.segments) == (17, 4)
    assert verdict.not_checked == [UNKNOWN]


FIRST, SECOND = ROWS["input_ids"]


@pytest.mark.parametrize(
    ("column", "lists", "message"),
    [
        ("seq_lengths", [[3, 4], [3]], "pack 0: cu_seqlens are [0, 3, 7]; expected them to end at"),
        ("seq_lengths", [[3, 5], [3, 0]], "pack 1 segment 1: it ends at 3 and starts at 3; expect"),
        ("seq_lengths", [[3, 5], []], "pack 1: cu_seqlens are [0]; expected 0 and the end of each"),
        ("seq_lengths", [[3, 6, -1], [3]], "pack 0 segment 2: it ends at 8 and starts at 9; expec"),
        ("input_ids", [FIRST, [1, -30, 2]], "pack 1 segment 0 token 1: the id is -30; expected 0"),
        ("input_ids", [FIRST, [1, 50, 2]], "pack 1 segment 0 token 1: the id is 50; expected 0 to"),
        ("input_ids", [FIRST, [1, 2**40, 2]], ": column input_ids has numbers that do not fit in"),
        ("input_ids", [FIRST, [1, None, 2]], "column input_ids holds nulls"),
        ("labels", [[-100, -3, *[2] * 6], SECOND], "pack 0 segment 0 token 1: the label is -3; ex"),
        ("labels", [[2] * 7, SECOND], "pack 0: labels has 7 values; expected 8, as a token column"),
        ("completion_mask", [[1] * 7, SECOND], "pack 0: completion_mask has 7 values; expected 8"),
        ("position_ids", [[*range(8)], [0, 1, 2]], "pack 0 segment 1 token 0: position_ids has 3"),
    ],
)
def test_a_defect_is_named(tmp_path: Path, column: str, lists: list[Any], message: str) -> None:
    (said, *_) = found(saved(tmp_path, **{column: lists}), vocab_size=50)
    assert said.startswith("data-00000-of-00001.arrow")
    assert message in said


def test_each_split_of_a_dataset_dict_is_checked(tmp_path: Path) -> None:
    good = datasets.Dataset.from_dict(ROWS)
    bad = datasets.Dataset.from_dict({**ROWS, "seq_lengths": [[3, 5], [2]]})
    datasets.DatasetDict({"train": good, "test": bad}).save_to_disk(tmp_path / "packed")
    (said,) = found(tmp_path / "packed")
    assert said.startswith("test/data-00000-of-00001.arrow pack 1: cu_seqlens are [0, 2]")


def test_a_shard_that_was_cut_off_or_is_missing_is_found(tmp_path: Path) -> None:
    path = saved(tmp_path)
    shard = path / "data-00000-of-00001.arrow"
    content = shard.read_bytes()
    for end, words in (
        (-8, "it ends after 2 packs without the end marker of an Arrow stream: it was cut off"),
        (len(content) // 2, "it is not a complete Arrow stream"),
    ):
        shard.write_bytes(content[:end])
        assert found(path)[0].startswith(f"{shard.name}: {words}")
    shard.unlink()
    assert found(path) == [f"{shard.name}: it is missing; state.json lists it"]


def test_without_boundaries_or_splits_there_is_nothing_to_check(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"input_ids": [[1, 2]]}).save_to_disk(tmp_path / "packed")
    (said,) = found(tmp_path / "packed")
    assert "has the columns input_ids; expected tokens and cu_seqlens" in said
    (tmp_path / "dataset_dict.json").write_text("[]")
    with refused(InputError, "lists no splits"):
        verify(tmp_path)
