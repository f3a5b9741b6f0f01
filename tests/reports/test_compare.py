from pathlib import Path
from typing import Any

from packprep.reports.compare import ComparedFigure, compare_reports, options_of
from tests.helpers.tiny_shards import GOLDEN, write_output

A: dict[str, Any] = {
    "report_version": 1,
    "utilization": 0.9,
    "tokens": {"dropped": {}, "truncated": 4},
    "bias": -0.5,
    "packs": 5,
    "sources": [{"name": "a.jsonl", "segments": 3}, {"name": "b.jsonl", "segments": 4}],
}
B: dict[str, Any] = {
    "report_version": 1,
    "utilization": 0.8,
    "tokens": {"dropped": {"too_long": 2}, "truncated": 1},
    "bias": 0.25,
    "packs": 6,
    "bos_rate": 1.0,
    "sources": [{"name": "b.jsonl", "segments": 4}],
}


def judged(a: dict[str, Any], b: dict[str, Any]) -> dict[str, str]:
    return {name: each.judgement for name, (each,) in compare_reports(a, b).items()}


def test_several_reports_are_each_compared_with_the_first() -> None:
    three, pair = compare_reports(A, B, B), compare_reports(A, B)
    assert three == {name: row * 2 for name, row in pair.items()}


def test_each_number_is_judged_by_the_way_it_should_go() -> None:
    assert judged(A, B) == {
        "utilization": "worse",
        "tokens.truncated": "better",
        "bias": "better",
        "packs": "differs",
        "a.jsonl: segments": "differs",
        "b.jsonl: segments": "same",
        "tokens.dropped.too_long": "worse",
        "bos_rate": "differs",
    }


def test_a_number_that_one_side_lacks_has_no_change() -> None:
    found = {name: each for name, (each,) in compare_reports(A, B).items()}
    assert found["bos_rate"] == ComparedFigure(name="bos_rate", a=None, b=1.0, judgement="differs")
    assert found["bos_rate"].change is None
    assert (found["tokens.dropped.too_long"].a, found["tokens.dropped.too_long"].change) == (0, 2)


def test_a_report_does_not_differ_from_itself_and_swapping_swaps_the_judgement() -> None:
    assert set(judged(A, A).values()) == {"same"}
    swapped = {"better": "worse", "worse": "better"}
    assert judged(B, A) == {
        name: swapped.get(judgement, judgement) for name, judgement in judged(A, B).items()
    }


def test_the_options_of_an_output_are_those_of_its_manifest(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [[]]}, max_length=16)
    assert options_of(tmp_path / "out")["max_length"] == "16"
    assert options_of(GOLDEN / "v1-example")["max_length"] == "8"
    assert options_of(GOLDEN / "v1-example" / "report.json") == {}
