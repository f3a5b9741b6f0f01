"""Whole builds: what they write, what decides it, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import datasets
import jsonschema
import numpy as np
import pytest
import yaml

from packprep import BuildConfig, PackPlan, build, pack_lengths
from packprep.inspect.report_file import read_report
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.schemas import Manifest, check_files, check_ledger, read_manifest
from packprep.schemas.ledger import LEDGER_KEYS
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import build_options, texts, tiny_tokenizer, write_jsonl
from tests.helpers.errors import refused
from tests.helpers.zoo import NAMES, Zoo

SCHEMAS = Path(__file__).parents[2] / "schemas"


@pytest.fixture
def corpus(tmp_path: Path) -> dict[str, Any]:
    """Options that build two files of 75 documents each in several units and windows."""
    with_ids = [{"text": text, "id": number} for number, text in enumerate(texts(75, seed=2))]
    files: dict[str, list[Any]] = {"a.jsonl": texts(75, seed=1), "b.jsonl": with_ids}
    return build_options(tmp_path, files, engine="hf", unit_size=3_000, window=9_000)


def made(corpus: dict[str, Any], **options: Any) -> Manifest:
    return build(BuildConfig(**corpus | options))


def check_balanced(table: Any) -> None:
    """Check the account of an output, or of a source, a phase or an epoch of it."""
    keys = [*LEDGER_KEYS, *(["shared"] if "shared" in table["tokens"] else [])]
    check_ledger({key: table["tokens"][key] for key in keys})


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_output_is_sound_and_as_its_schemas_say(zoo: Zoo, name: str) -> None:
    output, manifest, report = zoo[name], read_manifest(zoo[name]), read_report(zoo[name])
    for kind in ("manifest", "report"):
        schema = json.loads((SCHEMAS / f"{kind}.schema.json").read_text())
        jsonschema.validate(json.loads((output / f"{kind}.json").read_text()), schema)
    seconds = report["seconds"]
    rate = report["tokens"]["tokens_in"] / (seconds["total"] - seconds["start"])
    assert report["tokens_per_second"] == round(rate, 1), "of the work after the start"
    assert check_files(output, manifest, "sha256") == []
    assert list(map(str, verify(output, level="full", sample=10**6).findings)) == []
    assert sorted(path.name for path in output.parent.glob("out*")) == ["out"]
    parts = [*report["sources"], *report.get("phases", ()), *report.get("epochs", ())]
    parts += [source["account"] for source in report.get("mix", {}).get("sources", ())]
    for part in [report, *parts]:
        check_balanced(part)
    for split, counts in manifest.splits.items():
        for phase_key in ("packs", "segments", "tokens") if manifest.phases else ():
            of_phases = [getattr(phase.splits[split], phase_key) for phase in manifest.phases]
            assert sum(of_phases) == getattr(counts, phase_key)
    places = sum(
        part["packs"] * part.get("max_length", manifest.max_length)
        for part in report.get("phases", [report])
    )
    assert report["utilization"] == pytest.approx(report["tokens"]["tokens_packed"] / places)
    rows = datasets.load_from_disk(str(output))
    loaded = rows if isinstance(rows, datasets.DatasetDict) else {"train": rows}
    assert {split: len(each) for split, each in loaded.items()} == {
        split: counts.packs for split, counts in manifest.splits.items()
    }
    if "document_ids" in datasets.concatenate_datasets([*loaded.values()]).column_names:
        ids = [{one for row in each["document_ids"] for one in row} for each in loaded.values()]
        assert len(set().union(*ids)) == sum(map(len, ids)), "splits share no document"


def test_the_same_build_again_does_nothing_and_overwrite_replaces_an_output_only(
    corpus: dict[str, Any], tmp_path: Path
) -> None:
    manifest, output = made(corpus), Path(corpus["output"])
    before = {path: path.stat().st_mtime_ns for path in output.iterdir()}
    assert made(corpus, num_proc=1) == manifest
    assert {path: path.stat().st_mtime_ns for path in output.iterdir()} == before
    with pytest.raises(ConfigError, match=r"strategy was 'best_fit', now 'greedy'.*overwrite"):
        made(corpus, strategy="greedy")
    assert read_manifest(output) == manifest
    made(corpus, strategy="greedy", overwrite=True)
    assert read_manifest(output).data["inputs"]["options"]["strategy"] == "greedy"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("do not delete")
    with refused(ConfigError, "not an output of packprep"):
        made(corpus, output=str(tmp_path / "mine"), overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_planner_of_ones_own_packs_and_is_checked(corpus: dict[str, Any], tmp_path: Path) -> None:
    def lonely(lengths: np.ndarray, max_length: int) -> PackPlan:
        documents = np.arange(len(lengths))
        return PackPlan(lengths, max_length, documents, np.append(documents, len(lengths)))

    def greedy(lengths: np.ndarray, max_length: int) -> PackPlan:
        return pack_lengths(lengths, max_length, "greedy")

    def forgetful(lengths: np.ndarray, max_length: int) -> PackPlan:
        plan = lonely(lengths, max_length)
        return PackPlan(lengths, max_length, plan.order[1:], plan.offsets[:-1])

    corpus |= {"tokenizer": tiny_tokenizer(), "bos": "<s>", "eos": "</s>"}
    manifest = build(BuildConfig(**corpus), planner=lonely)
    text = (Path(corpus["output"]) / "build.yaml").read_text()  # says what no file can hold
    digest = manifest.data["inputs"]["tokenizer"]["sha256"]
    assert f"# The tokenizer was an object (sha256 {digest})" in text
    assert ".lonely: only packprep.build(..., planner=) runs it." in text
    assert "tokenizer" not in yaml.safe_load(text)
    assert all(len(pack.cu_seqlens) == 2 for pack in PackedShards(corpus["output"]))
    with pytest.raises(ConfigError, match=r"other settings.*planner"):
        build(BuildConfig(**corpus), planner=greedy)
    with refused(ConfigError, "the plan orders"):
        build(BuildConfig(**corpus | {"output": str(tmp_path / "bad")}), planner=forgetful)
    with refused(ConfigError, "expected packs of one group"):
        bad = {"output": str(tmp_path / "bad"), "group_column": "text"}
        build(BuildConfig(**corpus | bad), planner=greedy)
    assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize(
    ("rows", "options", "error", "words"),
    [
        (
            ["short", "long " * 100],
            {"overflow": "error"},
            InputError,
            ("b.jsonl row 1 has ", "but a pack holds 64", "--overflow split"),
        ),
        (["one", {"text": None}], {}, InputError, ("b.jsonl row 1 (line 2)", "no 'text'")),
        (["one"], {"min_document_tokens": 10_000}, InputError, ("no document is left",)),
        (
            texts(75),
            {"strategy": "balanced"},
            ConfigError,
            ("balanced packs one window and the input makes",),
        ),
        (
            texts(75),
            {"packs_multiple_of": 1000},
            InputError,
            ("drops all packs of the split train", 1000, "choose --packs-multiple-of 1000:fill"),
        ),
        (
            texts(75),
            {"packs_multiple_of": 20, "holdout": 0.02},
            InputError,
            ("drops all packs of the split validation", "a larger holdout"),
        ),
    ],
)
def test_a_build_that_cannot_be_is_a_sentence_and_no_output(
    corpus: dict[str, Any],
    tmp_path: Path,
    rows: list[Any],
    options: dict[str, Any],
    error: type[Exception],
    words: tuple[str | int, ...],
) -> None:
    write_jsonl(tmp_path / "b.jsonl", rows)
    with refused(error, *words):
        made(corpus, sources=corpus["sources"][1:], **options)
    assert not Path(corpus["output"]).exists()
