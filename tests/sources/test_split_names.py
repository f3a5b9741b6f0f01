"""Folders and globs whose names say splits are read only as the user has chosen."""

from pathlib import Path
from typing import Any

import pytest

from packprep import build
from packprep.schemas import read_manifest
from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer, write_jsonl
from tests.helpers.errors import assert_says
from tests.helpers.files import config
from tests.helpers.token_files import write_megatron

HUB = ("hub/data/test-00000-of-00001.jsonl", "hub/data/train-00000-of-00001.jsonl")
HELM = ("helm/a.jsonl", "helm/dev/x.jsonl", "helm/train/x.jsonl", "helm/train/y.jsonl")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_tokenizer(tmp_path / "tokenizer")
    return tmp_path


def make(*paths: str) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_jsonl(Path(path), [f"text of {path}"])


def built(*sources: str, out: str = "out") -> Result:
    return run("build", *sources, "-o", out, "--tokenizer", "tokenizer", "--max-length", 64)


def read_by(*sources: str, out: str = "out") -> list[str]:
    """Names of the files that a build of these sources reads, in order."""
    result = built(*sources, out=out)
    assert result.code == 0, result.err
    return [str(path) for path in read_manifest(Path(out)).run["source_paths"]]


REFUSED: list[tuple[str, list[str], list[str]]] = [
    ("{}", ["train.jsonl", "test.jsonl"], ["test (test.jsonl), train (train.jsonl)", "{}#train"]),
    ("{}/*.jsonl", ["train.jsonl", "val.jsonl"], ["validation (val.jsonl)", "*.jsonl#train"]),
    ("{}", ["corpus_train.jsonl", "corpus_eval.jsonl"], ["eval (corpus_eval.jsonl)"]),
    ("{}", ["a/Train.jsonl", "a/b-DEV2.jsonl"], ["validation (a/b-DEV2.jsonl)"]),
    ("{}", ["train/x.jsonl", "train/y.jsonl", "test/x.jsonl"], ["train/x.jsonl and 1 more"]),
    ("{}/*/x.jsonl", ["en.valid/x.jsonl", "en.test/x.jsonl"], ["test (en.test/x.jsonl)", "#test"]),
    ("{}/**", ["a/b/train-0-of-1.jsonl", "a/b/c/test.jsonl"], ["train (a/b/train-0-of-1.jsonl)"]),
    ("{}", ["held_out_test/training.jsonl", "train.jsonl"], ["test (held_out_test/"]),
    ("{}", ["train/human-eval.jsonl", "train/code.jsonl"], ["eval (train/human-eval.jsonl)"]),
    ("{}", ["train.jsonl.gz", "x.test.v2.csv"], ["test (x.test.v2.csv)"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "files", "words"), REFUSED)
def test_files_of_several_splits_are_refused_before_anything_is_read(
    here: Path, name: str, files: list[str], words: list[str]
) -> None:
    for file in files:
        Path("data", file).parent.mkdir(parents=True, exist_ok=True)
        Path("data", file).write_text("not read")
    source = name.format("data")
    refused = built(source)
    assert refused.code == 2
    assert_says(refused.err, f"{source} holds files of several splits", f"{source}#all")
    assert_says(refused.err, *(each.format("data") for each in words))


FINE = {
    "alike": ["latest.jsonl", "train.jsonl", "training.jsonl"],
    "contest": ["contest.jsonl", "evaluation.jsonl", "train.jsonl", "trains.jsonl"],
    "developer": ["developer/a.jsonl", "interval.jsonl", "train/a.jsonl", "évaltest.jsonl"],
    "held_out": ["validation-1.jsonl", "validation-2.jsonl"],
    "one": ["b/test.jsonl", "test/a.jsonl"],
    "same": ["dev.jsonl", "val/validation.jsonl", "valid.jsonl"],
    "test": ["train/a.jsonl", "train/b.jsonl"],
    "traintest": ["pretrain.jsonl", "testing.jsonl", "train-test.jsonl", "train.jsonl"],
}


def test_names_that_only_look_like_splits_are_read_as_before(here: Path) -> None:
    """All folders in one build: those of one split, of none, and of words with letters beside."""
    paths = [f"{folder}/{file}" for folder, files in FINE.items() for file in files]
    make(*paths)
    assert read_by(*FINE, out="folders") == paths
    globs = [f"{folder}/**/*.jsonl" for folder in FINE]
    assert [*map(str, map(Path, read_by(*globs, out="globs")))] == paths


CHOSEN = [
    (["hub#train"], [HUB[1]]),
    (["hub#all"], [*HUB]),
    (["hub#train+test"], [*HUB]),
    (["hub/data/*#test"], [HUB[0]]),
    (["hub/data/t*-of-*.jsonl#test+train"], [*HUB]),
    (["helm#dev"], [HELM[1]]),
    (["helm#validation"], [HELM[1]]),
    (["helm#train", "hub#train"], [HELM[2], HELM[3], HUB[1]]),
    (["helm/**/*.jsonl#all"], [*HELM]),
    ([HUB[0], HUB[1]], [*HUB]),
    ([f"{HUB[1]}#train"], [HUB[1]]),
    (["odd#train"], ["odd#train/a.jsonl", "odd#train/b.jsonl"]),
    (["odd*#train/*"], ["odd#train/a.jsonl", "odd#train/b.jsonl"]),
]


@pytest.mark.parametrize(("sources", "files"), CHOSEN)
def test_splits_are_chosen_by_their_names(here: Path, sources: list[str], files: list[str]) -> None:
    """A file named by itself needs no choice, and a folder may have # in its name."""
    make(*HUB, *HELM, "odd#train/a.jsonl", "odd#train/b.jsonl")
    assert read_by(*sources) == files


def test_files_of_no_split_that_a_choice_leaves_out_are_named(here: Path) -> None:
    make(*HELM, "helm/z.jsonl")
    line = "helm#train: a.jsonl and 1 more has no split in its name, and is not read; name it as"
    assert line in built("helm#train").err
    assert "no split" not in built("helm#all", out="all").err


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("helm#test", ["helm has no split 'test'; it has train (", "validation (", "helm#all"]),
        ("helm#trian", ["helm has no split 'trian'"]),
        ("helm#train+eval", ["helm has no split 'eval'"]),
        ("helm#train[:10%]", ["helm has no split 'train[:10%]'"]),
        ("none#train", ["none has no split 'train'; it has no file with a split in its name"]),
        ("none/a.jsonl#test", ["none/a.jsonl has no split 'test'"]),
        ("gone-*#train", ["no file matches gone-*"]),
    ],
)
def test_a_split_that_is_not_there_is_refused(here: Path, source: str, words: list[str]) -> None:
    make(*HELM, "none/a.jsonl")
    refused = built(source)
    assert refused.code == 2
    assert_says(refused.err, *words)


def test_a_chosen_split_makes_the_bytes_of_its_files_and_is_verified(here: Path) -> None:
    """Its own sources in a mix too: the names that the output records are those of the files."""
    make(*HELM)
    built("helm/train/x.jsonl", "helm/train/y.jsonl", out="files")
    built("helm#train", out="chosen")
    assert read_manifest(Path("chosen")).data == read_manifest(Path("files")).data
    mix: Any = [{"path": "helm#train", "epochs": 2}, {"path": "helm#dev", "epochs": 1}]
    build(config(sources=mix, output="mix", tokenizer="tokenizer", max_length=64))
    for out in ("chosen", "mix"):
        assert run("verify", out, "--level", "full").code == 0


def test_splits_of_token_files_are_chosen_without_naming_their_column(here: Path) -> None:
    for split in ("train", "test"):
        write_megatron(here / "ids", [[1, 2, 3]], name=f"text_{split}_document")
    options = ["--vocab-size", 9, "--max-length", 64, "-q"]
    refused = run("build", "ids/*.bin", "-o", "out", *options)
    assert refused.code == 2
    assert_says(refused.err, "several splits: test (text_test_document.bin)")
    assert run("build", "ids/*.bin#train", "-o", "out", *options).code == 0
    assert read_manifest(Path("out")).run["source_paths"] == ["ids/text_train_document.bin"]


def test_the_split_of_a_saved_dataset_is_chosen_in_the_same_way(here: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["a"]})
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk("saved")
    assert read_by("saved#test") == ["saved"]
    assert_says(built("saved#dev", out="no").err, "saved has no split 'dev'")


def test_objects_of_several_splits_in_a_store_follow_the_same_rule(
    here: Path, bucket: str, store: Any
) -> None:
    make(*HUB, *HELM)
    store.put(f"{here}/hub/", f"{bucket}/hub/", recursive=True)
    store.put(f"{here}/helm/", f"{bucket}/helm/", recursive=True)
    for name in ("hub", "hub/", "hub/data/*.jsonl"):
        refused = built(f"{bucket}/{name}")
        assert refused.code == 2
        assert_says(refused.err, f"{bucket}/{name} holds files of several splits: test (")
    assert read_by(f"{bucket}/hub#train", out="one") == [f"{bucket}/{HUB[1]}"]
    assert read_by(f"{bucket}/hub/data/*#all", out="all") == [f"{bucket}/{name}" for name in HUB]
    assert read_by(f"{bucket}/helm#dev", out="dev") == [f"{bucket}/{HELM[1]}"]
    assert_says(built(f"{bucket}/helm#test", out="no").err, "has no split 'test'")
    assert_says(built(f"{bucket}/gone#test", out="no").err, "there is no such object")
