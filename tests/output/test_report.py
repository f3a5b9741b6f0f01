import re
from collections import Counter
from pathlib import Path
from typing import Any

from packprep import BuildConfig, build
from packprep.inspect.report_file import read_report
from packprep.output.report import percentiles
from packprep.reports.card import dataset_card
from packprep.reports.closing import table
from packprep.reports.facts import gather
from packprep.schemas.form import form_fault
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.zoo import Zoo


def test_percentiles_are_values_that_occur() -> None:
    assert percentiles(Counter({1: 50, 3: 45, 9: 5})) == {"p50": 1, "p95": 3, "max": 9}
    assert percentiles(Counter({4: 1})) == {"p50": 4, "p95": 4, "max": 4}
    assert percentiles(Counter()) == {"p50": 0, "p95": 0, "max": 0}


def test_the_table_shows_what_was_lost_beside_utilization(zoo: Zoo) -> None:
    documents = {"in": 10, "empty": 1, "skipped": {"null": 2}, "dropped": {"too_short": 3}}
    report: Any = read_report(zoo["text"])
    report |= {
        "documents": documents | {"cut": 1, "cut_characters": 4},
        "tokens": report["tokens"] | {"filler": 0, "dropped": {"too_short": 5}},
        "tokens_lost": 105,
        "tokens_lost_share": 0.105,
        "utilization": 0.975,
        "seconds": {"plan": 0.5, "start": 1.25, "total": 2.0},
        "tokens_per_second": 500.0,
        "peak_memory_bytes": 10**6,
    }
    rows = dict(table(report))
    assert "filler" not in rows
    expected = {
        "documents": "10 (1 empty, 2 null)",
        "seconds": "2.0 (plan 0.5)",
        "tokens/s": "500 after a start of 1.2 s; peak memory 1 MB",
        "dropped, too_short": "5 in 3 documents",
        "tokens lost": "105 (10.500%)",
        "utilization": "97.500%",
        "text cut": "4 characters of 1 documents",
    }
    assert rows.items() >= expected.items()


def test_a_label_names_its_source_in_every_report(tmp_path: Path) -> None:
    """One file with a label of its own, two with one label, and a file without a label."""
    for name in "abcd":
        write_jsonl(tmp_path / f"{name}.jsonl", texts(9, ord(name)))
    paths = {name: str(tmp_path / f"{name}.jsonl") for name in "abcd"}
    sources: Any = (
        {"path": paths["a"], "label": "first"},
        {"path": [paths["b"], paths["c"]], "label": "both"},
        paths["d"],
    )
    options: dict[str, Any] = {"tokenizer": str(save_tokenizer(tmp_path / "tok")), "max_length": 64}
    output, other = tmp_path / "out", tmp_path / "other"
    build(BuildConfig(sources=sources, output=str(output), **options))
    report = read_report(output)
    assert form_fault(report, "report") is None
    assert [source["name"] for source in report["sources"]] == list(paths.values())
    labels = [source.get("label") for source in report["sources"]]
    assert labels == ["first", "both", "both", None]
    assert gather(output).names == ["first", "both (b.jsonl)", "both (c.jsonl)", "d.jsonl"]
    for page in (run("stats", output).out, dataset_card(output, "a/b")):
        assert "first" in page
        assert re.search(r"both \(\S*c\.jsonl\)", page)
    build(BuildConfig(sources=sources, output=str(other), **options, max_document_tokens=30))
    failed = run("check", other, "--baseline", output / "report.json")
    assert failed.code == 1
    assert re.search(r"(first|both \(\S*b\.jsonl\)) [\d,]+", failed.out)
    assert run("merge", output, "-o", tmp_path / "again").code == 0
    assert gather(tmp_path / "again").names == gather(output).names
