import json
import sys
from pathlib import Path

import pytest

from packprep.schemas import check_files, read_manifest
from tests.helpers.command import run
from tests.helpers.tiny_shards import GOLDEN

OUT = GOLDEN / "v1-example"
ELSEWHERE = "choose another place"


def test_report_writes_a_page_and_prints_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("report", OUT)
    assert (result.code, result.out, result.err) == (0, "report.html\n", "")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert check_files(OUT, read_manifest(OUT)) == []


def test_plots_come_with_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    result = run("report", OUT, "-o", tmp_path / "a.html", "--plots", tmp_path / "plots")
    lines = result.out.splitlines()
    assert lines[0] == str(tmp_path / "a.html")
    assert str(tmp_path / "plots" / "fill.png") in lines
    assert all(Path(line).is_file() for line in lines)


def test_json_prints_the_data_of_the_page(tmp_path: Path) -> None:
    printed = json.loads(run("report", OUT, "-o", tmp_path / "a.html", "--json").out)
    assert printed["histograms"]["documents"] == [[3, 2], [10, 1]]
    assert printed["written"] == [str(tmp_path / "a.html")]
    assert {row["strategy"]: row["packs"] for row in printed["strategies"]}["best_fit"] == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["nowhere"],
            "nowhere/manifest.json does not exist; expected the output of a finished packprep "
            "build",
        ),
        (
            [OUT, "-o", OUT / "r.html"],
            f"{OUT}/r.html is inside {OUT}, whose manifest lists every file; {ELSEWHERE}",
        ),
        (
            [OUT, "--plots", OUT / "p"],
            f"{OUT}/p is inside {OUT}, whose manifest lists every file; {ELSEWHERE}",
        ),
    ],
    ids=["no output", "page inside", "plots inside"],
)
def test_wrong_usage_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[object], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("report", *arguments)
    assert (result.code, result.out, result.err) == (2, "", f"packprep: {sentence}\n")
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("report", OUT, "-o", tmp_path / "a.html", "--plots", tmp_path / "plots")
    assert result.code == 2
    assert "plots need matplotlib" in result.err
