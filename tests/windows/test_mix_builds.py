"""Complete builds of mixes: shares, repeated documents, messages."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from packprep import build
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.schemas import check_ledger, read_manifest
from packprep.schemas.storage.writing import write_manifest
from packprep.support.errors import ConfigError, PackprepError
from tests.chat.test_build import TEMPLATE
from tests.helpers.command import run
from tests.helpers.corpus import (
    SHARED,
    RecordedProgress,
    expected_ids,
    save_tokenizer,
    texts,
    tiny_tokenizer,
    write_jsonl,
)
from tests.helpers.errors import assert_says, refused
from tests.helpers.files import config
from tests.helpers.planted import packs_of, plant


@pytest.fixture
def three(tmp_path: Path) -> dict[str, Any]:
    """Options of a build of three sources, in many units and windows.

    One source has two files with other columns.
    """
    write_jsonl(tmp_path / "a.jsonl", texts(100, seed=1))
    for name, seed in (("b-1.jsonl", 2), ("b-2.jsonl", 3)):
        write_jsonl(
            tmp_path / name, [{"q": text[:9], "answer": text[9:]} for text in texts(50, seed=seed)]
        )
    write_jsonl(tmp_path / "c.jsonl", [{"body": text} for text in texts(100, seed=4)])
    return {
        "sources": [
            {"path": tmp_path / "a.jsonl", "label": "a", "weight": 50},
            {
                "path": tmp_path / "b-*.jsonl",
                "label": "b",
                "weight": 30,
                "text_template": "{q}{answer}",
            },
            {"path": tmp_path / "c.jsonl", "label": "c", "weight": 20, "text_column": "body"},
        ],
        "output": tmp_path / "out",
        "tokenizer": save_tokenizer(tmp_path / "tokenizer"),
        "engine": "hf",
        "num_proc": 1,
        "max_length": 64,
        "unit_size": 4_000,
        "window": 9_000,
    }


def amounts(options: dict[str, Any], *new: dict[str, Any]) -> dict[str, Any]:
    """The same sources with other amounts."""
    keep = ("path", "label", "text_column", "text_template")
    tables = [
        {key: value for key, value in source.items() if key in keep} | amount
        for source, amount in zip(options["sources"], new, strict=True)
    ]
    return options | {"sources": tables}


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


def findings(output: Path) -> list[str]:
    return list(map(str, verify(output, level="full", sample=10**6).findings))


def test_a_mix_has_its_shares_for_any_number_of_workers_and_every_source_balances(
    three: dict[str, Any],
) -> None:
    outputs = [Path(f"{three['output']}-{workers}") for workers in (1, 2)]
    one, two = (
        build(config(**three | {"num_proc": workers, "output": output})).data
        for workers, output in enumerate(outputs, 1)
    )
    assert one == two
    report, shares = read_report(outputs[0]), shares_of(outputs[0])
    assert len(report["windows"]) > 2
    for source, weight in zip(report["mix"]["sources"], (50, 30, 20), strict=True):
        assert source["asked"] == {"weight": weight}
        assert abs(source["share"] - source["asked_share"]) < 0.002
        assert source["share"] == pytest.approx(shares[source["name"]])
        account = source["account"]
        check_ledger(account["tokens"])
        assert (account["bos_rate"], account["eos_rate"]) == (1.0, 1.0), "of the documents drawn"
        assert source["name"] != report["mix"]["limited_by"] or source["epochs"] == 1.0
    for file in report["sources"]:
        check_ledger(file["tokens"])
    assert report["mix"]["sources"][1]["account"]["documents"]["in"] == 100
    assert report["tokens"]["dropped"]["not_drawn"] > 0


def test_a_repeated_document_keeps_its_id_and_its_tokens_and_is_counted(
    three: dict[str, Any],
) -> None:
    manifest = build(config(**amounts(three, {"epochs": 2.5}, {"epochs": 1}, {"max_tokens": 300})))
    expected = expected_ids(texts(100, seed=1), tiny_tokenizer(), 0, 1)
    copies: dict[int, dict[int, Counter[tuple[int, ...]]]] = {}
    for pack in PackedShards(three["output"]):
        for segment in pack.segments():
            assert segment.document_id is not None
            assert segment.start is not None
            pieces = copies.setdefault(segment.document_id, {}).setdefault(segment.start, Counter())
            pieces[tuple(segment.tokens.tolist())] += 1
    times = Counter[int]()
    for document, ids in enumerate(expected):
        pieces_of = copies.get(document, {})
        assert [
            token for start in sorted(pieces_of) for token in next(iter(pieces_of[start]))
        ] == ids
        assert all(len(pieces) == 1 for pieces in pieces_of.values()), "each copy is the same"
        counts = {pieces.total() for pieces in pieces_of.values()}
        assert len(counts) <= 1, "each copy is whole"
        times.update(counts)
    assert set(times) == {2, 3}
    first = read_report(three["output"])["mix"]["sources"][0]
    assert first["repeated"]["documents"] == times[2] + 2 * times[3]
    assert first["account"]["tokens"]["tokens_in"] == first["account"]["tokens"]["tokens_packed"]
    assert manifest.data["repeated"]["documents"] == first["repeated"]["documents"]
    assert first["epochs"] == pytest.approx(2.5, abs=0.01)


def test_verify_counts_the_copies(three: dict[str, Any]) -> None:
    build(config(**amounts(three, {"epochs": 2.5}, {"epochs": 1}, {"epochs": 0.3})))
    assert findings(three["output"]) == []
    manifest = read_manifest(three["output"])
    repeated = manifest.data["repeated"]
    less = {"documents": repeated["documents"] - 1, "tokens": repeated["tokens"]}
    write_manifest(three["output"], manifest.data | {"repeated": less}, manifest.run)
    [finding] = verify(three["output"]).findings
    assert_says(finding.what, "repeated documents", less["documents"], less["documents"] + 1)


CUT: list[dict[str, Any]] = [
    {"overflow": "truncate", "truncation_side": "left"},
    {"overflow": "truncate", "truncation_side": "left", "strategy": "wrapped"},
    {"stride": 8, "packs_multiple_of": 8},
    {"strategy": "wrapped", "packs_multiple_of": 8},
]


@pytest.mark.parametrize(
    ("more", "seed"),
    [
        pytest.param(more, seed, marks=[] if seed == 0 and more in CUT[1:3] else pytest.mark.long)
        for more in CUT
        for seed in range(3)
    ],
    ids=str,
)
def test_verify_accepts_copies_without_their_beginning(
    three: dict[str, Any], more: dict[str, Any], seed: int
) -> None:
    repeated = amounts(three, {"epochs": 2}, {"epochs": 2}, {"epochs": 3})
    build(config(**repeated | {"seed": seed} | more))
    assert findings(three["output"]) == []


def test_verify_counts_the_copies_of_documents_cut_on_the_left(three: dict[str, Any]) -> None:
    amount = amounts(three, {"epochs": 2}, {"epochs": 2}, {"epochs": 3})
    build(config(**amount | {"overflow": "truncate", "truncation_side": "left"}))
    repeated = read_manifest(three["output"]).data["repeated"]["documents"]
    number = next(
        n for n, pack in enumerate(packs_of(three["output"])) if pack["document_starts"][0] > 0
    )
    plant(three["output"], lambda packs: packs.append(packs[number]))
    said = "\n".join(findings(three["output"]))
    assert_says(said, "repeated documents, the shards hold", repeated, repeated + 1)
    plant(three["output"], lambda packs: packs.__delitem__(slice(-2, None)))
    assert "repeated documents, the shards hold" in "\n".join(findings(three["output"]))


def test_verify_accepts_repeated_chats_with_dropped_pieces(tmp_path: Path) -> None:
    answers = [f"the cat sat on the mat {number}" for number in range(9)]
    question = {"role": "user", "content": "the dog " * 60}
    chat = [
        {"messages": [question, {"role": "assistant", "content": answer}]} for answer in answers
    ]
    side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    sources = [{"path": write_jsonl(tmp_path / "a.jsonl", chat), "weight": 3, "max_epochs": 3}]
    sources += [{"path": write_jsonl(tmp_path / "b.jsonl", chat), "weight": 1}]
    build(
        config(
            sources=sources,
            output=tmp_path / "out",
            tokenizer=save_tokenizer(tmp_path / "t", config=side),
            messages_column="messages",
            max_length=64,
            stride=16,
        )
    )
    manifest = read_manifest(tmp_path / "out")
    assert manifest.data["repeated"]["documents"] == 18
    assert "few_loss_tokens" in manifest.ledger["dropped"]
    assert findings(tmp_path / "out") == []


def test_verify_counts_both_sides_of_repeated_pairs(three: dict[str, Any]) -> None:
    sources = [{"path": three["sources"][1]["path"], "epochs": 2}]
    build(config(**three | {"sources": sources, "pair_columns": "q,answer", "overflow": "drop"}))
    assert read_manifest(three["output"]).data["repeated"]["documents"] > 0
    assert findings(three["output"]) == []


def test_other_weights_reuse_the_token_store_and_give_another_output(
    three: dict[str, Any], tmp_path: Path
) -> None:
    options = three | {"keep_tokens": tmp_path / "store"}
    first = build(config(**options))
    changes: list[dict[str, Any]] = [
        amounts(options, {"weight": 1}, {"weight": 1}, {"weight": 1}),
        amounts(options, {"epochs": 2}, {}, {"max_tokens": 100}),
        options | {"max_tokens": 500},
        options | {"max_epochs": 3},
        options | {"holdout": 0.1},
    ]
    for number, change in enumerate(changes):
        progress = RecordedProgress()
        again = build(config(**change | {"output": tmp_path / f"out-{number}"}), progress=progress)
        assert any("no text was read" in line for line in progress.lines), change
        assert again.identity != first.identity
    assert len(list((tmp_path / "store").iterdir())) == 1
    with refused(ConfigError, "was built with other settings"):
        build(config(**changes[0]))
    same_shares = amounts(options, {"weight": 5}, {"weight": 3}, {"weight": 2})
    progress = RecordedProgress()
    build(config(**same_shares), progress=progress)
    assert any("nothing to do" in line for line in progress.lines)


def test_a_column_of_one_source_reads_like_the_column_of_the_build(
    three: dict[str, Any], tmp_path: Path
) -> None:
    table = {"path": tmp_path / "c.jsonl", "text_column": "body"}
    plain = {"sources": tmp_path / "c.jsonl", "text_column": "body", "output": tmp_path / "2"}
    one, two = (build(config(**three | each)) for each in ({"sources": [table]}, plain))
    assert [file.sha256 for file in one.files] == [file.sha256 for file in two.files]
    assert "mix" not in read_report(three["output"])


def test_the_limit_of_a_source_counts_rows_of_all_its_files(three: dict[str, Any]) -> None:
    sources = [
        {key: source[key] for key in source if key != "weight"} for source in three["sources"]
    ]
    sources[1]["limit"] = 60
    find_report = build(config(**three | {"sources": sources}))
    assert [source["documents"] for source in find_report.data["sources"]] == [100, 50, 10, 100]
    sources[1]["limit"] = 50
    find_report = build(config(**three | {"sources": sources, "overwrite": True}))
    assert [source["documents"] for source in find_report.data["sources"]] == [100, 50, 0, 100]


@pytest.mark.parametrize(
    "more",
    [
        {"packs_multiple_of": 8, "holdout": 0.2},
        {"stride": 8, "pad_segment_to_multiple": 4, "max_tokens": 3_000},
        *(
            pytest.param(more, marks=pytest.mark.long)
            for more in (
                {"packs_multiple_of": 8, "remainder": "fill"},
                {"limit": 240},
                {"order": "input", "strategy": "greedy"},
                {"strategy": "stream", "shuffle_documents": True},
                {"strategy": "wrapped"},
                {"strategy": "balanced", "window": "1GB"},
                {"overflow": "truncate"},
                {"overflow": "drop", "min_document_tokens": 5},
            )
        ),
    ],
    ids=str,
)
def test_a_mix_goes_with_every_other_option(three: dict[str, Any], more: dict[str, Any]) -> None:
    manifest = build(config(**three | {"max_epochs": 2} | more))
    sources = read_report(three["output"])["mix"]["sources"]
    for source in sources:
        check_ledger(source["account"]["tokens"])
        # In such a small mix, a document is a large part, and a dropped pack a larger one.
        near = 0.04 if "packs_multiple_of" in more and "remainder" not in more else 0.01
        assert abs(source["share"] - source["asked_share"]) < near, source
    assert manifest.num_packs % more.get("packs_multiple_of", 1) == 0
    trained = sum(source["trained_tokens"] for source in sources)
    assert "max_tokens" not in more or 2_950 <= trained <= 3_000
    assert findings(three["output"]) == []
    folder = three["output"] / "train" if "holdout" in more else three["output"]
    assert len(datasets.load_from_disk(str(folder))) == manifest.splits["train"].packs


def test_held_out_documents_are_not_trained_and_not_repeated(
    three: dict[str, Any],
) -> None:
    build(
        config(**amounts(three, {"epochs": 3}, {"epochs": 1}, {"epochs": 0.5}) | {"holdout": 0.2})
    )
    ids = {
        split: Counter(
            (segment.document_id, segment.start)
            for pack in PackedShards(three["output"], split=split)
            for segment in pack.segments()
        )
        for split in ("train", "validation")
    }
    assert not {document for document, _ in ids["train"]} & {
        document for document, _ in ids["validation"]
    }
    assert set(ids["validation"].values()) == {1}
    assert max(ids["train"].values()) == 3


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


@pytest.mark.long
def test_half_a_third_and_a_fifth_of_real_text_are_within_a_thousandth(tmp_path: Path) -> None:
    text = SHARED / "text"
    sources = [
        {"path": text / "peps.jsonl.gz", "label": "peps", "weight": 50},
        {"path": text / "gsm8k.jsonl.gz", "label": "gsm8k", "weight": 30},
        {"path": text / "pydocs_*.jsonl.gz", "label": "pydocs", "weight": 20},
    ]
    options: dict[str, Any] = {
        "sources": sources,
        "tokenizer": SHARED / "tokenizers" / "gpt2",
        "unit_size": "2MB",
        "window": "4MB",
        "max_length": 2048,
        "max_epochs": 2,
        "keep_tokens": tmp_path / "store",
    }
    data = [build(config(**options, output=tmp_path / str(n), num_proc=n)).data for n in (1, 2)]
    assert data[0] == data[1]
    report = read_report(tmp_path / "1")
    assert len(report["windows"]) > 2
    for source in report["mix"]["sources"]:
        assert abs(source["share"] - source["asked_share"]) < 0.001
        check_ledger(source["account"]["tokens"])
    for file in report["sources"]:
        check_ledger(file["tokens"])
