"""Planted faults in XTuner's preset packs: each is found, with its file, pack and segment."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep.inspect.verify import verify
from tests.helpers.foreign_packs import SAMPLES, VOCABULARY, faults, write_preset


def changed(row: int, column: int, value: int) -> np.ndarray[Any, Any]:
    samples = np.array(SAMPLES)
    samples[row, column] = value
    return samples


FAULTS: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"boundaries": np.array([1, 2, 3, 5])},
        ["boundaries.npy: it begins with 1; expected 0"],
    ),
    (
        {"boundaries": np.array([0, 2, 3, 4])},
        ["boundaries.npy: it ends with 4; expected 5, the rows of samples.npy"],
    ),
    (
        {"boundaries": np.array([0, 2, 2, 5])},
        ["boundaries.npy pack 1: it has the rows 2 to 2 of samples.npy; expected at least one row"],
    ),
    (
        {"samples": np.array(SAMPLES)[:, :5]},
        ["samples.npy: it holds int64 of shape (5, 5); expected int64 of shape (segments, 6)"],
    ),
    (
        {"samples": changed(3, 0, 2)},
        ["samples.npy pack 2 segment 0: it is of file 2, and paths.json has 2; expected 0 to 1"],
    ),
    (
        {"samples": changed(1, 1, -1)},
        ["samples.npy pack 0 segment 1: its sample is -1; expected 0 or more"],
    ),
    (
        {"samples": changed(2, 4, -2)},
        ["samples.npy pack 1 segment 0: its first token is -2; expected 0 or more"],
    ),
    (
        {"samples": changed(4, 5, 4)},
        ["samples.npy pack 2 segment 1: it has tokens 4 to 4; expected at least one"],
    ),
    (
        {"samples": changed(0, 2, 7)},
        [
            "samples.npy pack 0 segment 0: it has characters 7 to -1; expected -1 and -1, or at "
            "least one character"
        ],
    ),
    (
        {"samples": np.array([*SAMPLES[:4], [1, 0, -1, -1, 6, 9]])},
        [
            "samples.npy pack 2 segment 1: it has tokens 6 to 9 of sample 0, and row 2 of "
            "samples.npy has 0 to 8; expected no tokens in both"
        ],
    ),
    ({"paths": {"a.jsonl": 0}}, ["paths.json: it is no JSON list of file names"]),
    (
        {"paths": ["a.jsonl", "a.jsonl"]},
        ["paths.json: it names a.jsonl twice, as 0 and 1"],
    ),
    (
        {"boundaries": np.array([0.0, 2.0, 5.0])},
        ["boundaries.npy: it holds float64 of shape (3,); expected int64 of shape (packs + 1,)"],
    ),
]


@pytest.mark.parametrize(("files", "sentences"), FAULTS)
def test_thirteen_faults_of_preset_packs_are_found(
    tmp_path: Path, files: dict[str, Any], sentences: list[str]
) -> None:
    assert faults(write_preset(tmp_path)) == []
    assert faults(write_preset(tmp_path, **files)) == sentences


def test_packs_segments_and_tokens_are_counted(tmp_path: Path) -> None:
    verdict = verify(write_preset(tmp_path / "train"))
    assert (verdict.files, verdict.packs, verdict.segments, verdict.tokens) == (3, 3, 5, 24)
    assert verdict.not_checked == [
        "digests, documents, BOS, EOS and the ledger: there is no manifest",
        "lengths of packs: pack_max_length is not in the files",
        "samples of files that are not here, such as a.jsonl",
        "samples of files that are not here, such as b.jsonl",
    ]


def test_a_sample_that_is_repeated_is_no_fault(tmp_path: Path) -> None:
    samples = np.array([*SAMPLES[:4], SAMPLES[0]])
    assert faults(write_preset(tmp_path, samples=samples)) == []


@pytest.mark.parametrize("name", ["boundaries.npy", "samples.npy", "paths.json"])
def test_a_missing_or_cut_file_is_found(tmp_path: Path, name: str) -> None:
    path = write_preset(tmp_path / "train") / name
    path.write_bytes(path.read_bytes()[:-5])
    (sentence,) = faults(tmp_path)
    assert sentence.startswith(f"train/{name}: it ")
    path.unlink()
    assert faults(tmp_path) == [
        f"train/{name}: it is missing; preset packs have boundaries.npy, samples.npy and paths.json"
    ]


LINES: dict[str, list[dict[str, Any]]] = {
    "a.jsonl": [
        {"input_ids": [1, 2, 3, 4, 5], "labels": [-100, 2, 3, 4, 5], "num_tokens": 5},
        {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "num_tokens": 3},
    ],
    "b.jsonl": [
        {"input_ids": [1] * 8, "labels": [1] * 8, "num_tokens": 8},
        {"input_ids": [2] * 8, "labels": [2] * 8, "num_tokens": 8},
    ],
}


@pytest.mark.parametrize(
    ("file", "line", "change", "sentence"),
    [
        ("a.jsonl", 0, None, None),
        ("a.jsonl", 1, {"text": "x"}, None),
        ("a.jsonl", 0, [1], "a.jsonl segment 0: the line is no JSON object"),
        (
            "a.jsonl",
            1,
            {"input_ids": [1, 2, 700], "labels": [1, 2, 700]},
            "a.jsonl segment 1 token 2: the id is 700; expected 0 to 99",
        ),
        (
            "b.jsonl",
            0,
            {"input_ids": [1] * 8, "labels": [1, 5, *[1] * 6]},
            "b.jsonl segment 0 token 1: the label is 5; expected -100 or the id, 1",
        ),
        (
            "b.jsonl",
            1,
            {"input_ids": [2] * 8, "labels": [2] * 7},
            "b.jsonl segment 1: labels has 7 values; expected 8, as input_ids",
        ),
        (
            "b.jsonl",
            1,
            {"input_ids": [2] * 8, "num_tokens": 9},
            "b.jsonl segment 1: num_tokens is 9; expected 8, as input_ids",
        ),
        (
            "b.jsonl",
            1,
            {"input_ids": [2, "x"]},
            "b.jsonl segment 1: input_ids is no list of whole numbers",
        ),
        (
            "a.jsonl",
            1,
            {"input_ids": [1, 2]},
            "a.jsonl segment 1: a pack has tokens of it up to 3, and it has 2",
        ),
    ],
)
def test_faults_of_samples_are_found_where_their_files_are(
    tmp_path: Path, file: str, line: int, change: Any, sentence: str | None
) -> None:
    write_preset(tmp_path)
    for name, rows in LINES.items():
        lines = [*rows]
        if name == file and change is not None:
            lines[line] = change
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in lines))
    found = faults(tmp_path, vocab_size=VOCABULARY)
    assert found[:1] == ([] if sentence is None else [sentence])


def test_a_sample_behind_the_end_of_its_file_is_found(tmp_path: Path) -> None:
    write_preset(tmp_path)
    (tmp_path / "a.jsonl").write_text(json.dumps(LINES["a.jsonl"][0]) + "\n")
    assert faults(tmp_path) == [
        "a.jsonl: a pack has its sample 1; expected less than 1, the number of lines"
    ]
