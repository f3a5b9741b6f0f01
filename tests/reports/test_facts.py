from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.reports.facts import gather, percent, short, short_names, visible
from packprep.schemas import FormatError
from tests.helpers.corpus import build_options, texts
from tests.helpers.tiny_shards import write_output


def built(folder: Path, files: int = 2, **more: Any) -> Path:
    """An output of `files` sources whose tokens meet every fate."""
    parts = {f"part{number}.jsonl": texts(60 + 10 * number, seed=number) for number in range(files)}
    fates = {
        "min_document_tokens": 20,
        "max_document_tokens": 200,
        "stride": 8,
        "packs_multiple_of": "16:fill",
        "pad_segment_to_multiple": 8,
    }
    build(BuildConfig(**build_options(folder, parts, **fates) | more))
    return folder / "out"


def test_the_links_of_a_flow_are_the_ledger_of_each_source(tmp_path: Path) -> None:
    facts = gather(built(tmp_path))
    links = facts.links()
    tokens = facts.report["tokens"]
    by_kind = {
        kind: sum(link.tokens for link in links if link.kind == kind)
        for kind in ("kept", "lost", "padding")
    }
    assert by_kind == {
        "kept": tokens["tokens_packed"] - tokens["filler"],
        "lost": facts.report["tokens_lost"],
        "padding": tokens["filler"],
    }
    for number, source in enumerate(facts.report["sources"]):
        ledger = source["tokens"]
        whole = (
            ledger["tokens_in"] + ledger["overlap"] + ledger["continuation_bos"] + ledger["filler"]
        )
        assert sum(link.tokens for link in links if link.source == facts.names[number]) == whole
    assert {link.source for link in links} == {"part0.jsonl", "part1.jsonl", "packs added"}


def test_more_sources_than_colours_share_the_last(tmp_path: Path) -> None:
    facts = gather(built(tmp_path, files=10))
    assert {facts.color(number) for number in range(10)} == {f"c{n}" for n in range(8)}
    smaller = [number for number in range(10) if facts.color(number) == "c7"]
    assert [facts.label(number) for number in smaller] == ["3 smaller files"] * 3
    assert sum(link.tokens for link in facts.links()) == sum(
        facts.report["tokens"][key]
        for key in ("tokens_in", "overlap", "continuation_bos", "filler")
    )


def test_what_is_no_output_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expected the finished output of packprep build"):
        gather(tmp_path)
    write_output(tmp_path / "out", {"train": [[]]})
    assert gather(tmp_path / "out").measured.fill.total == 0
    (tmp_path / "out" / "report.json").unlink()
    with pytest.raises(FormatError, match=r"report.json is missing"):
        gather(tmp_path / "out")


def test_names_are_short_and_stay_different() -> None:
    assert short_names(["a/b/x.txt", "a/c.txt"]) == ["b/x.txt", "c.txt"]
    assert short_names(["/data/one.jsonl"]) == ["one.jsonl"]
    assert short_names(["a/x", "ab/x"]) == ["a/x", "ab/x"]
    assert short_names([]) == []
    assert visible("a\tb\udce9\u202ec 東京") == "a\ufffdb\ufffd\ufffdc 東京"


def test_numbers_are_short_and_never_round_to_all_or_nothing() -> None:
    counts = {7: "7", 4096: "4,096", 12_345: "12.3k", 7_000_000: "7M", 12_172_244: "12.2M"}
    assert {count: short(count) for count in (*counts, 3e12)} == counts | {3e12: "3T"}
    shares = {0: "0%", 1e-9: "<0.01%", 0.5: "50%", 0.99875: "99.88%", 0.999999: "99.99%", 1: "100%"}
    assert {share: percent(share) for share in shares} == shares
