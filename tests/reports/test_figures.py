import json
from pathlib import Path
from typing import Any

import pytest

from packprep.inspect.report_file import read_report
from packprep.packing.figures import FIGURES, figure_row
from packprep.reports.closing import table
from packprep.reports.compare import compare_reports, options_of
from packprep.reports.facts import gather
from packprep.reports.figures import figures, resolve_name
from packprep.reports.page import render
from packprep.support.errors import InputError
from tests.helpers.tiny_shards import GOLDEN, write_output
from tests.helpers.zoo import Zoo

REPORT: dict[str, Any] = {
    "report_version": 1,
    "utilization": 0.5,
    "tokens": {"truncated": 3, "dropped": {"too_long": 2}},
    "windows": [{"gap": 1}],
    "sources": [{"name": "a", "bos_rate": 1.0}, {"name": "b", "bos_rate": 0.5}],
    "sha256": "f",
}


def test_a_number_is_named_by_its_path_and_windows_are_left_out() -> None:
    named = figures(REPORT)
    assert named == {
        "utilization": 0.5,
        "tokens.truncated": 3,
        "tokens.dropped.too_long": 2,
        "sources.0.bos_rate": 1.0,
        "sources.1.bos_rate": 0.5,
    }
    assert figures(named) == named, "a flat baseline gives the same names"


def test_every_row_is_about_a_key_of_the_schema() -> None:
    schema = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text())
    for row in FIGURES:
        assert row.name[0] == "*" or row.name.split(".")[0] in schema["properties"], row.name


def test_every_computed_figure_is_in_the_report_the_closing_table_and_on_the_page(zoo: Zoo) -> None:
    report, page = read_report(zoo["chats"]), render(gather(zoo["chats"]))
    lines = dict(table(report))
    for row in FIGURES:
        assert not row.is_computed or row.name in report
        if row.caption:
            text = row.text.format_map(report)
            assert lines[row.caption] == text
            assert f'<th scope="row">{row.caption}</th><td>{text}</td>' in page


@pytest.mark.parametrize(
    ("name", "better", "tolerance"),
    [
        ("bos_rate", "as it was", 0),
        ("sources.12.bos_rate", "as it was", None),  # checked only when asked
        ("documents_per_pack.p50", "neither", None),
    ],
)
def test_a_source_follows_the_row_of_the_whole_and_others_none(
    name: str, better: str, tolerance: float | None
) -> None:
    assert (figure_row(name).better, figure_row(name).tolerance) == (better, tolerance)


def test_the_name_of_a_table_means_all_its_reasons() -> None:
    reasons = resolve_name("tokens_dropped", figures(REPORT))
    assert {"tokens.dropped.too_long", "tokens.dropped.overflow"} <= set(reasons)
    assert all(name.startswith("tokens.dropped.") for name in reasons)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory; expected a report.json or an output"),
        ("{", "is not JSON: .*; expected a report.json"),
        ("[1]", "holds a list; expected a report.json"),
        ('{"utilization": 1}', "is not a report of packprep: it has no report_version"),
    ],
)
def test_what_is_no_report_is_refused_with_what_was_expected(
    tmp_path: Path, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "r.json").write_text(content)
    with pytest.raises(InputError, match=rf"r\.json {message}"):
        read_report(tmp_path / "r.json")


A: Any = {
    "report_version": 1,
    "utilization": 0.9,
    "tokens": {"dropped": {}, "truncated": 4},
    "bias": -0.5,
    "packs": 5,
    "sources": [{"name": "a.jsonl", "segments": 3}, {"name": "b.jsonl", "segments": 4}],
}
B: Any = {
    "report_version": 1,
    "utilization": 0.8,
    "tokens": {"dropped": {"too_long": 2}, "truncated": 1},
    "bias": 0.25,
    "packs": 6,
    "bos_rate": 1.0,
    "sources": [{"name": "b.jsonl", "segments": 4}],
}


def judged(a: Any, b: Any) -> dict[str, str]:
    return {name: each.judgement for name, (each,) in compare_reports(a, b).items()}


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
    changes = {name: each.change for name, (each,) in compare_reports(A, B).items()}
    assert (changes["bos_rate"], changes["tokens.dropped.too_long"]) == (None, 2)


def test_the_options_of_an_output_are_those_of_its_manifest(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [[]]}, max_length=16)
    assert options_of(tmp_path / "out")["max_length"] == "16"
    assert options_of(GOLDEN / "v1-example")["max_length"] == "8"
    assert options_of(GOLDEN / "v1-example" / "report.json") == {}
