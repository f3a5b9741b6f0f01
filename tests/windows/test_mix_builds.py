"""Complete builds of mixes: shares, repeated documents, messages."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packprep import BuildConfig, build
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.schemas import check_ledger, read_manifest
from packprep.support.errors import PackprepError
from tests.helpers.command import run
from tests.helpers.corpus import (
    save_tokenizer,
    texts,
    write_jsonl,
)
from tests.helpers.errors import assert_says, refused
from tests.helpers.files import config
from tests.helpers.planted import packs_of, plant
from tests.helpers.zoo import Zoo


def mixed(zoo: Zoo, output: Path, *amounts: dict[str, Any], **options: Any) -> BuildConfig:
    """The config of the mix of the zoo with other amounts of its sources, and other options."""
    made, sources = zoo.config("mix"), zoo.sources("mix")
    if amounts:
        tables = [{"path": path, **amount} for path, amount in zip(sources, amounts, strict=True)]
        options = {"sources": tables, "max_tokens": None, "max_epochs": 1.0} | options
    return config(**vars(made) | {"output": output} | options)


def shares_of(output: Path) -> dict[str, float]:
    """Share of each source of the mix, counted in the shards."""
    manifest, report = read_manifest(output), read_report(output)
    firsts = [source["first_document"] for source in manifest.data["sources"]]
    packed = Counter[str]()
    for pack in PackedShards(output):
        for segment in pack.segments():
            file = int(np.searchsorted(firsts, segment.document_id or 0, side="right")) - 1
            packed[Path(report["sources"][file]["name"]).name[0]] += len(segment.tokens)
    return {name: tokens / packed.total() for name, tokens in packed.items()}


def test_a_mix_has_its_shares_and_every_source_balances(zoo: Zoo) -> None:
    report, shares = read_report(zoo["mix"]), shares_of(zoo["mix"])
    assert len(report["windows"]) > 2
    for source, weight in zip(report["mix"]["sources"], (50, 30, 20), strict=True):
        assert source["asked"] == {"weight": weight}
        assert abs(source["share"] - source["asked_share"]) < 0.002
        assert source["share"] == pytest.approx(shares[source["name"]])
        account = source["account"]
        check_ledger(account["tokens"])
        assert (account["bos_rate"], account["eos_rate"]) == (1.0, 1.0), "of the documents drawn"
        assert account["documents"]["in"] == 120
    assert report["tokens"]["dropped"]["not_drawn"] > 0


def test_verify_counts_the_copies_of_documents_cut_on_the_left(zoo: Zoo, tmp_path: Path) -> None:
    output, cut = tmp_path / "out", {"overflow": "truncate", "truncation_side": "left"}
    build(mixed(zoo, output, {"epochs": 2}, {"epochs": 2}, {"epochs": 3}, **cut))
    assert verify(output, level="full").sound
    repeated = read_manifest(output).data["repeated"]["documents"]
    number = next(n for n, pack in enumerate(packs_of(output)) if pack["document_starts"][0] > 0)
    plant(output, lambda packs: packs.append(packs[number]))
    said = "\n".join(str(finding) for finding in verify(output, level="full").findings)
    assert_says(said, "repeated documents, the shards hold", repeated, repeated + 1)


@pytest.mark.parametrize(("limit", "rows"), [(130, 10), (120, 0)])
def test_the_limit_of_a_source_counts_rows_of_all_its_files(
    zoo: Zoo, tmp_path: Path, limit: int, rows: int
) -> None:
    a, _, c = zoo.sources("mix")
    sources = [{"path": a.with_name("[ab].jsonl"), "limit": limit}, {"path": c}]
    plain = {"max_tokens": None, "max_epochs": 1.0}
    built = build(mixed(zoo, tmp_path / "out", **plain, sources=sources))
    assert [source["documents"] for source in built.data["sources"]] == [120, rows, 120]


@pytest.mark.parametrize(
    "more",
    [
        {"packs_multiple_of": 8, "holdout": 0.2},
        {"stride": 8, "pad_segment_to_multiple": 4, "max_tokens": 3_000},
        pytest.param({"order": "input", "strategy": "greedy"}, marks=pytest.mark.long),
        pytest.param({"strategy": "stream", "shuffle_documents": True}, marks=pytest.mark.long),
        pytest.param({"strategy": "wrapped", "limit": 300}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_mix_goes_with_every_other_option(zoo: Zoo, tmp_path: Path, more: dict[str, Any]) -> None:
    weights = [{"weight": weight} for weight in (50, 30, 20)]
    manifest = build(mixed(zoo, tmp_path / "out", *weights, **more))
    sources = read_report(tmp_path / "out")["mix"]["sources"]
    for source in sources:
        check_ledger(source["account"]["tokens"])
        # In such a small mix, a document is a large part, and a dropped pack a larger one.
        near = 0.04 if "packs_multiple_of" in more else 0.01
        assert abs(source["share"] - source["asked_share"]) < near, source
    assert manifest.num_packs % more.get("packs_multiple_of", 1) == 0
    trained = sum(source["trained_tokens"] for source in sources)
    assert "max_tokens" not in more or 2_950 <= trained <= 3_000
    assert verify(tmp_path / "out", level="full", sample=10**6).sound


def test_an_impossible_mix_is_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    rows = {
        "a": ["one two", "three"],
        "b": ["one two"],
        "empty": [""],
        "long": ["one", "word " * 500],
    }
    files = {name: str(write_jsonl(tmp_path / f"{name}.jsonl", rows[name])) for name in rows}
    a, b, empty, missing = files["a"], files["b"], files["empty"], str(tmp_path / "gone.jsonl")
    one, other = {"path": a, "weight": 1}, {"path": b, "weight": 1}
    cases: list[tuple[list[Any], tuple[str, ...]]] = [
        ([one | {"weight": 0}, other], (a, "has weight 0, expected a number above 0")),
        ([one, b], (f"source {b} has no weight and {a} has one",)),
        ([one, {"path": missing, "weight": 1}], (f"no such file: {missing}",)),
        ([one, {"path": empty, "weight": 1}], (f"the source {empty} has no tokens to mix",)),
        ([one, {"path": str(tmp_path / "*.jsonl"), "weight": 1}], (f"{a} is in the mix twice",)),
        ([one | {"text_column": "body"}, other], (f"{a} has no column 'body'; it has text",)),
        ([{"path": a, "split": "train"}, b], (f"source {a}: split 'train' is for hub",)),
        ([{"path": files["long"], "epochs": 1}], (f"{files['long']} row 1 has ",)),
    ]
    common: dict[str, Any] = {"tokenizer": str(save_tokenizer(tmp_path / "t")), "engine": "hf"}
    common |= {"output": str(tmp_path / "out"), "overflow": "error", "max_length": 64}
    for sources, words in cases:
        with refused(PackprepError, *words):
            build(config(sources=sources, **common))
        assert not (tmp_path / "out").exists()


def test_weights_on_the_command_line_mix_the_sources_in_their_order(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", texts(150, seed=1))
    write_jsonl(tmp_path / "b.jsonl", texts(150, seed=2))
    save_tokenizer(tmp_path / "t")
    mixed = ("build", "a.jsonl", "b.jsonl", "--weights", "3,1", "--tokenizer", "t")
    result = run(*mixed, "-o", "out", "--max-length", 64)
    assert result.code == 0, result
    assert "the mix is as large as a.jsonl allows: its " in result.err
    lines = dict(line.split("  ", 1) for line in result.out.splitlines()[1:])
    assert lines["mix, a.jsonl"].strip().startswith("75.0")
    assert lines["mix, b.jsonl"].strip().startswith(("25.0", "24.9"))
    assert "of those drawn" in lines["tokens lost"]
    dry = run(*mixed, "-o", "dry", "--dry-run", "--json")
    predicted, report = json.loads(dry.out)["mix"], read_report(tmp_path / "out")["mix"]["sources"]
    assert list(predicted) == ["a.jsonl", "b.jsonl"]
    for source in report:
        assert predicted[source["name"]]["tokens"] == pytest.approx(
            source["trained_tokens"], rel=0.05
        )
        assert predicted[source["name"]]["share"] == pytest.approx(source["asked_share"], abs=1e-3)
