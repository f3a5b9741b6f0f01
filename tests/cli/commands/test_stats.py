"""`stats` of one output, of an unfinished one, and of several side by side."""

import json
import re
from pathlib import Path

import pytest

from packprep.inspect.report_file import read_report
from packprep.reports.closing import table
from tests.helpers.command import run
from tests.helpers.tiny_shards import GOLDEN
from tests.helpers.zoo import Zoo


def words_of(text: str) -> dict[str, list[str]]:
    """The words of each line by the first of them."""
    return {words[0]: words for words in map(str.split, text.splitlines()) if words}


def test_the_report_its_sources_histograms_and_steps_are_printed(zoo: Zoo) -> None:
    result = run("stats", zoo["mix"], "--global-batch-size", 4, "--world-size", 2)
    assert (result.code, result.err) == (0, "")
    lines, report = result.out.splitlines(), read_report(zoo["mix"])
    for name, value in table(report):
        assert any(line.startswith(name) and line.endswith(value) for line in lines), name
    assert sum(line.endswith("100.00%  100.00%") for line in lines) == 3, "BOS and EOS of sources"
    for title in (
        "Length of documents: Median",
        "Documents in a pack: Median",
        "Fill of packs: ",
        "Attention cost of packs: ",
    ):
        assert any(line.startswith(title) for line in lines), title
    assert f"steps per epoch       {report['packs'] // 4}" in result.out
    assert "packs per step        4, 2 on each of 2 ranks" in lines
    found = json.loads(run("stats", zoo["text"], "--json", "--global-batch-size", 4).out)
    assert (found["progress"], found["builds"]) == (None, 1)
    packs = found["report"]["packs"]
    assert found["report"] == read_report(zoo["text"])
    assert packs == found["counts"]["fill"]["total"] == found["training"]["packs"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone"], "gone/manifest.json does not exist"),
        ([GOLDEN / "v1-rich" / "report.json"], "report.json/manifest.json is not a file"),
        ([GOLDEN / "v1-rich", "gone"], "gone cannot be read: No such file or directory"),
        ([GOLDEN / "v1-rich"] * 2 + ["--global-batch-size", 2], "--global-batch-size is for one"),
        ([GOLDEN / "v1-rich"] * 2 + ["--store", "x"], "--store is for one output"),
        ([GOLDEN / "v1-rich"] * 27, "27 outputs are too many side by side; give at most 26"),
    ],
)
def test_what_stats_cannot_show_is_refused_in_one_sentence(
    arguments: list[object], words: str
) -> None:
    result = run("stats", *arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert words in result.err


def test_a_finished_output_that_is_built_again_shows_both(zoo: Zoo, tmp_path: Path) -> None:
    output = zoo.copy("text", tmp_path)
    finished = run("stats", output).out
    (tmp_path / "text.incomplete").mkdir()
    (tmp_path / "text.incomplete" / "build.json").write_text(
        json.dumps({"tokens": str(tmp_path), "source_bytes": 1_000})
    )
    title, both = f"{output} is finished; a build that is not\n", run("stats", output).out
    assert both.startswith(title)
    assert both.endswith(f"\n\n{finished}")
    assert json.loads(run("stats", output, "--json").out)["progress"]["source_bytes"] == 1_000


def test_options_and_numbers_that_differ_are_shown_with_better_or_worse(zoo: Zoo) -> None:
    a, b = zoo["text"], zoo["epochs"]
    result = run("stats", a, b)
    assert (result.code, result.out.splitlines()[:3]) == (0, ["compared", f"A  {a}", f"B  {b}"])
    lines = words_of(result.out)
    assert lines["epochs"] == ["epochs", "1", "2"]
    assert (lines["packs"][-1], lines["utilization"][-1]) == ("differs", "worse")
    assert "max_length" not in lines
    assert "more numbers are equal; --all shows them" in result.out
    assert len(words_of(run("stats", a, b, "--all").out)) > len(lines)


def test_equal_outputs_are_reported_as_equal() -> None:
    golden = GOLDEN / "v1-rich"
    lines = run("stats", golden, golden).out.splitlines()
    assert lines[0] == f"the data files of {golden} and {golden} are identical, byte for byte"
    assert re.fullmatch(r"all \d+ numbers are equal", lines[1])


def test_reports_by_themselves_are_compared_too(zoo: Zoo) -> None:
    reports = [zoo[name] / "report.json" for name in ("text", "epochs")]
    found = json.loads(run("stats", *reports, "--json").out)
    assert found["options"] == {}
    (packs,) = [each for each in found["figures"] if each["name"] == "packs"]
    assert packs["change"] == packs["b"] - packs["a"] > 0
