"""Numbers of outputs: report, its page, and check, against counts of packs by plain Python."""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import packprep
from packprep import BuildConfig
from packprep.look.figures import FIGURES, short_names, values
from packprep.look.findings import Facts, findings
from packprep.look.gate import check
from packprep.look.measure import Counts, measure
from packprep.look.page import histogram
from packprep.look.places import look
from packprep.schemas.columns import STANDARD
from packprep.schemas.manifest import open_output, packs
from packprep.support.errors import StoppedError
from tests.conftest import Command
from tests.helpers.written import COLUMNS, pack, write

ROWS: list[dict[str, Any]] = [
    {"ids": [*range(length)], "targets": [-100] * (length // 2) + [*range(length // 2, length)]}
    for length in (1, 3, 5, 8, 30, 2, 2, 17, 9, 45, 4, 1, 12, 6, 3, 3, 28, 7, 11, 19) * 3
]
OUTPUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stride": {"stride": 4, "max_length": 16},
    "labels": {"ids": "ids,targets:labels"},
    "truncated": {"overflow": "truncate", "strategy": "greedy"},
    "dropped": {"overflow": "drop", "min_document_tokens": 4},
    "left out": {"min_pack_tokens": 30, "multiple": 7, "max_document_tokens": 40},
    "windows": {"holdout": "30%", "multiple": "8:fill", "window": 300},
    "padded": {"pad_to_multiple": 4},
    "names of others": {"columns": ["hf"]},
    "no documents": {"columns": ["position_ids", "cu_seqlens"]},
}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Outputs of packs of 32 tokens, by name."""
    folder = tmp_path_factory.mktemp("zoo")
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    same = {"sources": [str(source)], "ids": "ids", "tokenizer": 50257, "max_length": 32}
    for name, settings in OUTPUTS.items():
        packprep.build(BuildConfig(**{**same, "output": str(folder / name), **settings}))
    return {name: folder / name for name in OUTPUTS}


def report_of(place: Path) -> dict[str, Any]:
    facts = look(str(place)).facts
    assert facts is not None
    return dict(facts.report)


def plain_packs(place: Path) -> list[list[tuple[int, int, int]]]:
    """Packs of all splits as (document, tokens, labels) of segments; -1 is filler."""
    output, made = open_output(place), list[list[tuple[int, int, int]]]()
    names = {name: column.name for name, column in output.manifest.columns.items()}
    for split in output.manifest.splits:
        for part in packs(output, split):
            for row in part.batch.to_pylist():
                pack = {standard: row[name] for standard, name in names.items()}
                ends = pack.get("cu_seqlens") or [0, *itertools.accumulate(pack["seq_lengths"])]
                count = len(ends) - 1
                ids = pack.get("document_ids") or [len(made) * 1000 + at for at in range(count)]
                real = pack.get("segment_lengths") or np.diff(ends).tolist()
                labels = pack.get("labels") or [-100] * len(pack["tokens"])
                trained = [
                    sum(label != -100 for label in labels[a:b]) for a, b in itertools.pairwise(ends)
                ]
                made.append(list(zip(ids, real, trained, strict=True)))
    return made


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_numbers_are_those_of_the_packs(zoo: Mapping[str, Path], name: str) -> None:
    report, every = report_of(zoo[name]), plain_packs(zoo[name])
    measured = measure(open_output(zoo[name]), report["windows"])
    real = [[segment for segment in pack if segment[0] >= 0] for pack in every]
    documents = Counter[int]()
    for document, tokens, _ in itertools.chain(*real):
        documents[document] += tokens
    fill = [sum(tokens for _, tokens, _ in pack) for pack in real]
    assert measured.documents.of == Counter(documents.values())
    assert measured.per_pack.of == Counter(map(len, real))
    assert measured.fill.of == Counter(fill)
    assert measured.segments == sum(map(len, real))
    assert measured.continued == sum(map(len, real)) - len(documents)
    assert [tuple(length for length, _ in pack) for pack in measured.first] == [
        tuple(tokens if name != "padded" else -(-tokens // 4) * 4 for _, tokens, _ in pack)
        for pack in every[:24]
    ]
    assert report["packs"] == len(every)
    assert report["utilization"] == sum(fill) / (len(every) * report["max_length"])
    trained = sum(segment[2] for pack in every for segment in pack)
    assert values(report).get("trained_share", trained / sum(fill)) == trained / sum(fill)
    assert ("trained_share" in values(report)) == (name == "labels")


def test_sides_of_a_pair_are_documents_of_their_own(tmp_path: Path) -> None:
    columns = [*COLUMNS, *(STANDARD[name] for name in ("pair_ids", "pair_sides", "turn_ids"))]
    ids, sides = [4, 4, 9, 9, -1], [0, 1, 0, 1, -1]
    of_pairs: Any = {"pair_ids": ids, "pair_sides": sides, "turn_ids": [-1] * 5}
    pairs = pack(3, 5, 2, 7, 6, document_ids=ids, **of_pairs)
    measured = measure(open_output(write(tmp_path / "out", [[pairs]], columns)), [])
    assert measured.documents.of == Counter([3, 5, 2, 7])
    assert (measured.segments, measured.continued) == (4, 0)
    assert measured.fill.of == Counter([17])


@pytest.mark.parametrize("name", OUTPUTS)
def test_json_has_the_report_and_may_be_a_baseline(
    zoo: Mapping[str, Path], run: Command, tmp_path: Path, name: str
) -> None:
    said = run("report", zoo[name], zoo["plain"], "--json")
    first, second = map(json.loads, said.out.splitlines())
    written = json.loads((zoo[name] / "report.json").read_bytes())
    assert written.items() <= first.items()
    assert (first["place"], second["place"]) == (str(zoo[name]), str(zoo["plain"]))
    assert {"kind", "options", "findings"} <= first.keys()
    (tmp_path / "base.json").write_text(json.dumps(first))
    result = run("check", zoo[name], "--against", tmp_path / "base.json", "--json")
    assert result.code == 0
    figures = json.loads(result.out)["figures"]
    assert all(each["passed"] and each["value"] == each["baseline"] for each in figures)
    assert {"utilization", "tokens.truncated", "eos_rate"} <= {each["name"] for each in figures}


def test_a_store_has_documents_tokens_and_lengths(tmp_path: Path, run: Command) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"ids": row["ids"]}) + "\n" for row in ROWS))
    run("tokenize", source, "-o", tmp_path / "store", "--ids", "ids", "--tokenizer", "50257", "-q")
    (entry,) = json.loads(run("report", tmp_path / "store", "--json").out)["entries"]
    lengths = sorted(len(row["ids"]) for row in ROWS)
    assert (entry["documents"], entry["tokens"]) == (len(lengths), sum(lengths))
    assert entry["lengths"] == {"median": 6, "95%": lengths[57 - 1], "longest": 45}
    assert f"{sum(lengths):,}" in run("report", tmp_path / "store").out
    assert run("check", tmp_path / "store", "--max-lost", "0").code == 2


def test_a_build_that_was_stopped_says_how_far_it_is(tmp_path: Path, run: Command) -> None:
    source, calls = tmp_path / "a.jsonl", itertools.count()
    source.write_text("".join(json.dumps({"ids": row["ids"]}) + "\n" for row in ROWS))

    def planner(lengths: Any, max_length: int) -> Any:
        if next(calls):
            raise StoppedError("enough")
        return packprep.pack_lengths(lengths, max_length)

    out = tmp_path / "out"
    config = BuildConfig(
        sources=[str(source)],
        output=str(out),
        ids="ids",
        tokenizer=50257,
        max_length=64,
        window=300,
    )
    with pytest.raises(StoppedError):
        packprep.build(config, planner=planner)
    for name in (out, tmp_path / "out.incomplete"):
        shown = json.loads(run("report", name, "--json").out)
        (tokenized,) = shown["tokenized"]
        assert (tokenized["splits_done"], tokenized["splits"]) == (1, 1)
        assert tokenized["tokens"] == sum(len(row["ids"]) for row in ROWS)
        assert shown["packed"]["windows"] == 1
        assert 0 < shown["packed"]["tokens"] < tokenized["tokens"]
        assert "not finished" in run("report", name).out


class Outline(HTMLParser):
    """Reads a page, whose tags must be closed in order. addresses: of what it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.text, self.addresses = list[str](), "", list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [str(value) for name, value in attrs if name in ("src", "href")]
        assert tag != "script"
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_page_is_whole_and_has_the_numbers(
    zoo: Mapping[str, Path], run: Command, tmp_path: Path, name: str
) -> None:
    assert run("report", zoo[name], "-o", tmp_path / "page.html").code == 0
    page = Outline()
    page.feed(content := (tmp_path / "page.html").read_text("utf-8"))
    assert page.open == []
    assert page.addresses == []
    assert not re.search(r"url\(|@import|http", content.partition("<body>")[2])
    report = report_of(zoo[name])
    for number in (report["packs"], report["documents"]["in"], report["tokens_lost"]):
        assert f"{number:,}" in page.text
    assert f"{100 * report['utilization']:.2f}%" in page.text
    pictures = content.count("<svg viewBox=")
    known = name != "no documents"
    assert pictures == min(24, report["packs"]) * known
    assert ("<title>row " in content) == known
    above = max(report["gap"], report["packs"] - report["bound"])
    assert (f"{above:,} above the least" if above else "no plan has fewer") in page.text


def test_names_of_files_are_text_in_a_page(tmp_path: Path, run: Command) -> None:
    names = ["<script>alert(1)</script>", "{{ report }}", "a&b\"'"]
    folder = tmp_path / "in"
    folder.mkdir()
    for name in names:
        (folder / f"{name.replace('/', '_')}.jsonl").write_text('{"ids": [1, 2, 3]}\n')
    out = tmp_path / "<b>out"
    run("build", folder, "-o", out, "--ids", "ids", "--tokenizer", "50257", "-q")
    run("report", out, "-o", tmp_path / "page.html")
    page = Outline()
    page.feed((tmp_path / "page.html").read_text("utf-8"))
    assert page.open == []
    assert "<b>out" in page.text
    for name in names:
        assert name.replace("/", "_") in page.text


@given(st.lists(st.integers(0, 10**12) | st.integers(0, 50), max_size=60))
def test_every_value_is_in_one_bar(numbers: list[int]) -> None:
    counts = Counts()
    counts.add(np.array(numbers, np.int64))
    drawn = histogram(counts)
    assert sum(int(bar.title.rpartition(" ")[2].replace(",", "")) for bar in drawn.bars) == len(
        numbers
    )
    assert 1 <= len(drawn.bars) <= 64
    assert all(0 <= bar.share <= 1 for bar in drawn.bars)
    assert [bar.x for bar in drawn.bars] == sorted(bar.x for bar in drawn.bars)
    assert len(drawn.ticks) <= 6
    if numbers:
        assert max(bar.share for bar in drawn.bars) == 1
        assert counts.quantile(1) == max(numbers)
        assert counts.quantile(0.5) == sorted(numbers)[math.ceil(len(numbers) / 2) - 1]


@pytest.mark.parametrize(
    ("option", "figure", "sign"),
    [("min_utilization", "utilization", 1), ("max_lost", "tokens_lost_share", -1)],
)
def test_a_limit_holds_at_its_exact_value(
    zoo: Mapping[str, Path], option: str, figure: str, sign: int
) -> None:
    report = report_of(zoo["truncated"])
    share = values(report)[figure]
    for limit, passed in ((share, True), (np.nextafter(share, 2 * sign), False)):
        limits: dict[str, Any] = {option: f"{limit:.20f}"}
        (verdict,) = check(report, **limits)
        assert verdict.passed == passed
    assert figure in verdict.sentence


def changed(report: Mapping[str, Any], name: str, value: float) -> dict[str, Any]:
    """The report with another value of a number."""
    made = json.loads(json.dumps(report))
    *path, last = name.split(".")
    table = made
    for key in path:
        table = table[int(key)] if isinstance(table, list) else table.setdefault(key, {})
    table[last] = value
    return dict(made)


HELD = [
    (row, row.name.replace("*", "too_long" if "tokens" in row.name else "no_text"))
    for row in FIGURES
    if row.tolerance is not None and not row.name.startswith("mix.")
]


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(("row", "name"), HELD, ids=[name for _, name in HELD])
def test_a_figure_fails_just_beyond_its_tolerance(
    zoo: Mapping[str, Path], row: Any, name: str, asked: bool
) -> None:
    report = report_of(zoo["plain"])
    was, tolerance = values(report).get(name, 0), 3.0 if asked else float(row.tolerance)
    step = 1 if row.unit == "count" else 1e-6
    amounts = {"higher": -1, "lower": 1}
    given = [f"{name}={tolerance:g}"] if asked else []
    for worse, passed in ((0, True), (tolerance, True), (tolerance + step, False), (-step, True)):
        now = was + amounts.get(row.better, 1) * worse
        if row.unit == "count":
            now = int(now)
        verdicts = {each.name: each for each in check(changed(report, name, now), report, given)}
        expected = passed if worse >= 0 or row.better in amounts else tolerance >= step
        assert verdicts[name].passed == expected
        assert all(each.passed for other, each in verdicts.items() if other != name)
    failed = [*check(changed(report, name, was + amounts.get(row.better, 1) * 9), report, given)]
    sentences = [each.sentence for each in failed if not each.passed]
    assert [sentence.startswith(f"{name} is ") for sentence in sentences] == [True]
    assert failed[0].cure


def test_a_mix_is_held_to_its_sources(tmp_path: Path, run: Command) -> None:
    for name, count in (("a", 400), ("b", 60)):
        row = json.dumps({"ids": [*range(20)]}) + "\n"
        (tmp_path / f"{name}.jsonl").write_text(row * count)
    sources = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    options: dict[str, Any] = {
        "ids": "ids",
        "tokenizer": 50257,
        "max_length": 64,
        "sources": sources,
    }
    for name, weights in (("one", (1, 1)), ("two", (3, 1))):
        options |= {"output": str(tmp_path / name), "weights": weights}
        packprep.build(BuildConfig(**options, max_tokens=1600))
    out = tmp_path / "one"
    said = run("check", tmp_path / "two", "--against", out)
    assert said.code == 1
    assert said.out.startswith(f"{tmp_path / 'two'} against {out}\n")
    assert "FAILED  mix.sources.b.jsonl.trained_tokens" in said.out
    assert "ok      mix.sources.a.jsonl.trained_tokens" in said.out
    named = ("--tolerance", "mix.sources.*.trained_tokens=60%")
    assert "FAILED  mix" not in run("check", tmp_path / "two", "--against", out, *named).out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["report", "nothing"], "nothing"),
        (["report", "."], "manifest.json"),
        (["report", "/"], "manifest.json"),
        (["report", "plain/state.json"], "state.json"),
        (["report", "damaged"], "report.json"),
        (["report", "plain", "plain", "-o", "x.html"], "-o"),
        (["report", "plain", "-o", "damaged"], "-o damaged"),
        (["report", "plain", "-o", "x.html", "--json"], "--json"),
        (["check", "plain"], "--against"),
        (["check", "plain", "--max-lost", "0", "--tolerance", "packs=1"], "--against"),
        (["check", "plain", "--max-lost", "-1"], "--max-lost"),
        (["check", "plain", "--min-utilization", "101%"], "--min-utilization"),
        (["check", "plain", "--against", "plain", "--tolerance", "packs"], "packs"),
        (["check", "plain", "--against", "plain", "--tolerance", "pakcs=1"], "packs"),
        (["check", "plain", "--against", "few.json"], "few.json"),
        (["check", "plain", "--against", "old.json"], "old.json"),
    ],
)
def test_bad_input_is_a_sentence(
    zoo: Mapping[str, Path],
    run: Command,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    named: str,
) -> None:
    (tmp_path / "plain").symlink_to(zoo["plain"])
    (tmp_path / "damaged").mkdir()
    for path in zoo["plain"].iterdir():
        content = path.read_bytes()
        (tmp_path / "damaged" / path.name).write_bytes(content.replace(b'"bound":', b'"bounD":'))
    (tmp_path / "few.json").write_text('{"report_version": 2, "tokens": 7}')
    (tmp_path / "old.json").write_text('{"report_version": 1}')
    monkeypatch.chdir(tmp_path)
    said = run(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("error: ")
    assert named in said.err


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("truncated", "--overflow split"),
        ("truncated", "--strategy best_fit"),
        ("windows", "for --multiple"),
        ("stride", "continue a document"),
    ],
)
def test_findings_name_cause_and_cure(
    zoo: Mapping[str, Path], run: Command, tmp_path: Path, name: str, named: str
) -> None:
    run("report", zoo[name], "-o", tmp_path / "page.html")
    page = Outline()
    page.feed((tmp_path / "page.html").read_text("utf-8"))
    assert named in page.text


@pytest.mark.parametrize(
    ("field", "turns", "named"),
    [
        ("reasoning_content", "row", True),
        ("thinking", "row", True),
        ("reasoning_content", "auto", False),
        ("content", "row", False),
        ("name", "row", False),
    ],
)
def test_turns_are_advised_only_for_thoughts_that_they_would_train(
    zoo: Mapping[str, Path], field: str, turns: str, named: bool
) -> None:
    size = {"characters": 19, "documents": 1, "tokens": 4}
    report = {**report_of(zoo["plain"]), "left_out": {**size, "fields": {field: size}}}
    options = {} if turns == "row" else {"turns": turns}
    found = [each.sentence for each in findings(Facts(report, options, {})) if "19" in each.text]
    assert ["--turns auto" in sentence for sentence in found] == [named]


def test_names_of_sources_are_the_same_in_any_folder() -> None:
    for names, short in ((["a.x", "b.x"], ["a.x", "b.x"]), (["a/x", "b/x"], ["a/x", "b/x"])):
        for folder in ("", "/data/", "s3://bucket/"):
            assert short_names([folder + names[0], f"/other/{names[1]}"]) == short
    assert short_names(["-", "-"]) == ["-", "-"]
