"""Complete builds of mixes: shares, repeated documents, messages."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import jsonschema
import numpy as np
import pytest

from packprep import build
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.schemas import check_ledger, read_manifest
from packprep.schemas.storage.writing import write_manifest
from packprep.support.errors import ConfigError
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
from tests.helpers.files import config
from tests.helpers.planted import packs_of, plant

SCHEMAS = Path(__file__).parents[2] / "schemas"


@pytest.fixture
def three(tmp_path: Path) -> dict[str, Any]:
    """Options of a build of three sources, in many units and windows.

    One source has two files with other columns.
    """
    write_jsonl(tmp_path / "a.jsonl", texts(200, seed=1))
    for name, seed in (("b-1.jsonl", 2), ("b-2.jsonl", 3)):
        write_jsonl(
            tmp_path / name, [{"q": text[:9], "answer": text[9:]} for text in texts(90, seed=seed)]
        )
    write_jsonl(tmp_path / "c.jsonl", [{"body": text} for text in texts(200, seed=4)])
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
        "max_length": 64,
        "unit_size": 4_000,
        "window": 16_000,
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
    packed = Counter[int]()
    for pack in PackedShards(output):
        for segment in pack.segments():
            assert segment.document_id is not None
            packed[int(np.searchsorted(firsts, segment.document_id, side="right")) - 1] += len(
                segment.tokens
            )
    names, result = [source["name"] for source in report["sources"]], {}
    for source in report["mix"]["sources"]:
        files = [
            number
            for number, name in enumerate(names)
            if Path(name).name.startswith(source["name"])
        ]
        result[source["name"]] = sum(packed[number] for number in files) / packed.total()
    return result


def test_a_mix_has_its_shares_for_any_number_of_workers_and_every_source_balances(
    three: dict[str, Any],
) -> None:
    data = [
        build(
            config(**three | {"num_proc": workers, "output": f"{three['output']}-{workers}"})
        ).data
        for workers in (1, 2)
    ]
    assert data[0] == data[1]
    output = Path(f"{three['output']}-1")
    report = read_report(output)
    assert len(report["windows"]) > 2
    for source in report["mix"]["sources"]:
        assert abs(source["share"] - source["asked_share"]) < 0.001
        assert source["share"] == pytest.approx(shares_of(output)[source["name"]])
        check_ledger(source["account"]["tokens"])
        assert (source["account"]["bos_rate"], source["account"]["eos_rate"]) == (1.0, 1.0), (
            "of the documents drawn"
        )
    for file in report["sources"]:
        check_ledger(file["tokens"])
    assert [source["asked"] for source in report["mix"]["sources"]] == [
        {"weight": 50},
        {"weight": 30},
        {"weight": 20},
    ]
    assert report["mix"]["sources"][1]["account"]["documents"]["in"] == 180
    assert report["tokens"]["dropped"]["not_drawn"] > 0
    scarce = report["mix"]["limited_by"]
    assert [
        source["epochs"] for source in report["mix"]["sources"] if source["name"] == scarce
    ] == [1.0]
    for name in ("manifest", "report"):
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        jsonschema.validate(json.loads((output / f"{name}.json").read_text()), schema)


def test_a_repeated_document_keeps_its_id_and_its_tokens_and_is_counted(
    three: dict[str, Any],
) -> None:
    manifest = build(config(**amounts(three, {"epochs": 2.5}, {"epochs": 1}, {"max_tokens": 300})))
    expected = expected_ids(texts(200, seed=1), tiny_tokenizer(), 0, 1)
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
    assert list(map(str, verify(three["output"], level="full", sample=10**6).findings)) == []
    manifest = read_manifest(three["output"])
    less = {
        "documents": manifest.data["repeated"]["documents"] - 1,
        "tokens": manifest.data["repeated"]["tokens"],
    }
    write_manifest(three["output"], manifest.data | {"repeated": less}, manifest.run)
    [finding] = verify(three["output"]).findings
    assert (
        finding.what
        == f"it has {less['documents']} repeated documents, the shards hold {less['documents'] + 1}"
    )


@pytest.mark.parametrize(
    "more",
    [
        {"overflow": "truncate", "truncation_side": "left"},
        {"overflow": "truncate", "truncation_side": "left", "strategy": "wrapped"},
        {"stride": 8, "packs_multiple_of": 8},
        {"strategy": "wrapped", "packs_multiple_of": 8},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_verify_accepts_copies_without_their_beginning(
    three: dict[str, Any], more: dict[str, Any], seed: int
) -> None:
    build(
        config(
            **amounts(three, {"epochs": 2}, {"epochs": 2}, {"epochs": 3}) | {"seed": seed} | more
        )
    )
    assert list(map(str, verify(three["output"], level="full", sample=10**6).findings)) == []


def test_verify_counts_the_copies_of_documents_cut_on_the_left(three: dict[str, Any]) -> None:
    amount = amounts(three, {"epochs": 2}, {"epochs": 2}, {"epochs": 3})
    build(config(**amount | {"overflow": "truncate", "truncation_side": "left"}))
    repeated = read_manifest(three["output"]).data["repeated"]["documents"]
    number = next(
        n for n, pack in enumerate(packs_of(three["output"])) if pack["document_starts"][0] > 0
    )
    plant(three["output"], lambda packs: packs.append(packs[number]))
    findings = list(map(str, verify(three["output"]).findings))
    assert (
        f"manifest.json: it has {repeated:,} repeated documents, the shards hold {repeated + 1:,}"
        in findings
    )
    plant(three["output"], lambda packs: packs.__delitem__(slice(-2, None)))
    assert any(
        "repeated documents, the shards hold" in line
        for line in map(str, verify(three["output"]).findings)
    )


def test_verify_accepts_repeated_chats_with_dropped_pieces(tmp_path: Path) -> None:
    answers = [f"the cat sat on the mat {number}" for number in range(9)]
    chat = [
        {
            "messages": [
                {"role": "user", "content": "the dog " * 60},
                {"role": "assistant", "content": answer},
            ]
        }
        for answer in answers
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
    assert list(map(str, verify(tmp_path / "out", level="full").findings)) == []


def test_verify_counts_both_sides_of_repeated_pairs(three: dict[str, Any]) -> None:
    sources = [{"path": three["sources"][1]["path"], "epochs": 2}]
    build(config(**three | {"sources": sources, "pair_columns": "q,answer", "overflow": "drop"}))
    assert read_manifest(three["output"]).data["repeated"]["documents"] > 0
    assert list(map(str, verify(three["output"], level="full", sample=10**6).findings)) == []


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
    with pytest.raises(ConfigError, match="was built with other settings"):
        build(config(**changes[0]))


def test_weights_of_the_same_shares_are_the_same_build(three: dict[str, Any]) -> None:
    build(config(**three))
    progress = RecordedProgress()
    build(config(**amounts(three, {"weight": 5}, {"weight": 3}, {"weight": 2})), progress=progress)
    assert any("nothing to do" in line for line in progress.lines)


def test_a_column_of_one_source_reads_like_the_column_of_the_build(
    three: dict[str, Any], tmp_path: Path
) -> None:
    table = {"path": tmp_path / "c.jsonl", "text_column": "body"}
    with_table = build(config(**three | {"sources": [table]}))
    plain = build(
        config(
            **three
            | {"sources": tmp_path / "c.jsonl", "text_column": "body", "output": tmp_path / "2"}
        )
    )
    assert [file.sha256 for file in with_table.files] == [file.sha256 for file in plain.files]
    assert "mix" not in read_report(three["output"])


def test_the_limit_of_a_source_counts_rows_of_all_its_files(three: dict[str, Any]) -> None:
    sources = [
        {key: source[key] for key in source if key != "weight"} for source in three["sources"]
    ]
    sources[1]["limit"] = 100
    find_report = build(config(**three | {"sources": sources}))
    assert [source["documents"] for source in find_report.data["sources"]] == [200, 90, 10, 200]
    sources[1]["limit"] = 90
    find_report = build(config(**three | {"sources": sources, "overwrite": True}))
    assert [source["documents"] for source in find_report.data["sources"]] == [200, 90, 0, 200]


@pytest.mark.parametrize(
    "more",
    [
        {"holdout": 0.2},
        {"packs_multiple_of": 8},
        {"packs_multiple_of": 8, "remainder": "fill"},
        {"limit": 480},
        {"max_tokens": 3_000},
        {"order": "input", "strategy": "greedy"},
        {"strategy": "stream", "shuffle_documents": True},
        {"strategy": "wrapped"},
        {"strategy": "balanced", "window": "1GB"},
        {"overflow": "truncate"},
        {"overflow": "drop", "min_document_tokens": 5},
        {"stride": 8, "pad_segment_to_multiple": 4},
    ],
    ids=str,
)
def test_a_mix_goes_with_every_other_option(three: dict[str, Any], more: dict[str, Any]) -> None:
    manifest = build(config(**three | {"max_epochs": 2} | more))
    report = read_report(three["output"])
    for source in report["mix"]["sources"]:
        check_ledger(source["account"]["tokens"])
        # In such a small mix, a document is a large part, and a dropped pack a larger one.
        near = 0.02 if "packs_multiple_of" in more and "remainder" not in more else 0.005
        assert abs(source["share"] - source["asked_share"]) < near, source
    if "packs_multiple_of" in more:
        assert manifest.num_packs % 8 == 0
    if "max_tokens" in more:
        assert (
            2_950 <= sum(source["trained_tokens"] for source in report["mix"]["sources"]) <= 3_000
        )
    assert list(map(str, verify(three["output"], level="full", sample=10**6).findings)) == []
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


def bad(tmp_path: Path, sources: list[Any], **options: Any) -> str:
    """Error sentence of the command line for these sources of a YAML file."""
    (tmp_path / "mix.yaml").write_text(
        json.dumps({"sources": sources, "tokenizer": str(save_tokenizer(tmp_path / "t"))})
    )
    more = [
        word for key, value in options.items() for word in (f"--{key.replace('_', '-')}", value)
    ]
    result = run("build", "-c", tmp_path / "mix.yaml", "-o", tmp_path / "out", *more)
    assert (result.code, result.out, result.err.count("packprep: ")) == (2, "", 1), result
    assert not (tmp_path / "out").exists()
    return result.err.splitlines()[-1].removeprefix("packprep: ")


def test_an_impossible_mix_is_one_sentence_that_names_the_file(tmp_path: Path) -> None:
    a, b = (
        str(write_jsonl(tmp_path / name, ["one two", "three"])) for name in ("a.jsonl", "b.jsonl")
    )
    empty = str(write_jsonl(tmp_path / "empty.jsonl", [""]))
    assert bad(tmp_path, [{"path": a, "weight": 0}, {"path": b, "weight": 1}]) == (
        f"source {a} has weight 0, expected a number above 0; to use nothing of a source, leave "
        "it out"
    )
    assert bad(tmp_path, [{"path": a, "weight": 1}, b]).startswith(
        f"source {b} has no weight and {a} has one; give"
    )
    missing = str(tmp_path / "gone.jsonl")
    assert (
        bad(tmp_path, [{"path": a, "weight": 1}, {"path": missing, "weight": 1}])
        == f"no such file: {missing}"
    )
    assert bad(tmp_path, [{"path": a, "weight": 1}, {"path": empty, "weight": 1}]) == (
        f"the source {empty} has no tokens to mix; fix it or leave it out"
    )
    twice = [{"path": a, "weight": 1}, {"path": str(tmp_path / "*.jsonl"), "weight": 1}]
    assert (
        bad(tmp_path, twice) == f"{a} is in the mix twice; name it once, and repeat it with epochs"
    )
    assert bad(
        tmp_path, [{"path": a, "weight": 1, "text_column": "body"}, {"path": b, "weight": 1}]
    ).startswith(f"{a} has no column 'body'; it has text")
    assert bad(tmp_path, [{"path": a, "split": "train"}, b]) == (
        f"source {a}: split 'train' is for hub and saved datasets, and no source is one; leave it "
        "out"
    )
    too_long = str(write_jsonl(tmp_path / "long.jsonl", ["one", "word " * 500]))
    assert bad(
        tmp_path, [{"path": too_long, "epochs": 1}], overflow="error", max_length=64
    ).startswith(f"{too_long} row 1 has ")


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
