import json
from pathlib import Path

import pytest

from tests.helpers.command import run
from tests.helpers.tiny_shards import GOLDEN

OUT = GOLDEN / "v1-example"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_report_writes_a_page_and_json_prints_its_data(here: Path) -> None:
    assert run("report", OUT).out == "report.html\n"
    assert (here / "report.html").read_text().startswith("<!doctype html>")
    printed = json.loads(run("report", OUT, "-o", "a.html", "--json").out)
    assert printed["histograms"]["documents"] == [[3, 2], [10, 1]]
    assert printed["written"] == ["a.html"]
    assert {row["strategy"]: row["packs"] for row in printed["strategies"]}["best_fit"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere/manifest.json does not exist"),
        ([OUT, "-o", OUT / "r.html"], f"{OUT}/r.html is inside {OUT}, whose manifest lists every"),
    ],
    ids=["no output", "page inside"],
)
def test_wrong_usage_is_one_sentence(here: Path, arguments: list[object], words: str) -> None:
    result = run("report", *arguments)
    assert (result.code, result.out, words in result.err) == (2, "", True)
    assert not list(here.iterdir())
