"""Planted faults in XTuner's preset packs: each is found, with its file, pack and segment."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep.inspect.verify import verify
from tests.helpers.foreign_packs import SAMPLES, faults, write_preset


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
        "lengths of packs against pack_max_length, and samples against their files",
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
