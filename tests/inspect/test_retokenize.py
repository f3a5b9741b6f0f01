"""`verify --level full`: sampled rows are read and tokenized again, and what differs is named."""

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from packprep import build
from packprep.engines.tokenizer import recorded_tokenizer
from packprep.inspect.moved import Moved
from packprep.inspect.verify import verify
from packprep.schemas import digest_of, read_manifest
from packprep.schemas.storage.writing import write_manifest
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.errors import assert_says, refused
from tests.helpers.files import config
from tests.helpers.planted import packs_of, plant


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two sources and an output named by relative paths."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", texts(40))
    rows = b'{"text": "one more"}\n{"text": "and another"}\n'
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(rows))
    save_tokenizer(tmp_path / "tok")
    built(sources=["a.jsonl", "b.jsonl.gz"])
    return tmp_path


def built(**options: Any) -> None:
    build(config(**{"output": "out", "tokenizer": "tok", "max_length": 64} | options))


def found(output: str | Path = "out", **options: Any) -> list[str]:
    return [str(finding) for finding in verify(output, level="full", **options).findings]


def test_ids_that_another_tokenizer_gave_are_found_though_every_digest_is_right(here: Path) -> None:
    packs = packs_of(here / "out")
    number = next(number for number, pack in enumerate(packs) if pack["cu_seqlens"][1] > 5)
    row, start = (packs[number][name][0] for name in ("document_ids", "document_starts"))
    plant(here / "out", lambda packs: packs[number]["tokens"].__setitem__(3, 300))
    assert verify("out").sound
    (said,) = found()
    place = f"data-00000-of-00001.arrow pack {number} segment 0: 1 ids differ from those of"
    assert_says(said, f"{place} a.jsonl row {row}", f"first at token {start + 3}: 300 here, ")


def test_a_missing_source_is_a_sentence_and_root_says_where_it_is_now(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    out = here / "out"
    assert found(out) == ["the tokenizer tok does not exist; give its new path with --tokenizer"]
    said = found(out, moved=Moved(tokenizer=str(here / "tok")))
    assert len(said) == 2
    for line, name in zip(said, ("a.jsonl", "b.jsonl.gz"), strict=True):
        assert_says(line, f"the source {name} does not exist", "--root")
    assert verify(out, level="full", moved=Moved(root=here)).sound


def test_what_has_changed_since_the_build_is_a_sentence_and_the_rest_is_compared(
    here: Path,
) -> None:
    write_jsonl(here / "a.jsonl", [*texts(40)[:-1], "changed"])
    verdict = verify("out", level="full")
    (finding,) = verdict.findings
    changed = "the source a.jsonl has changed since the build; its documents were not compared"
    assert (str(finding), verdict.sampled) == (changed, 2)
    manifest = read_manifest(here / "out")
    data = json.loads(json.dumps(manifest.data))
    data["inputs"]["options"]["colour"] = "blue"
    data["identity"] = digest_of(data["inputs"])
    write_manifest(here / "out", data, manifest.run)
    (said,) = found()
    assert_says(said, "manifest.json has the option 'colour', which this packprep does not know")
    write_manifest(here / "out", manifest.data, manifest.run)
    file = here / "tok" / "tokenizer.json"
    file.write_text(file.read_text() + " ")
    (said,) = found()
    assert said.startswith("tok is not the tokenizer of this output: it has sha256")


def test_standard_input_cannot_be_read_again(here: Path) -> None:
    run("build", "-", "-o", "piped", "--tokenizer", "tok", stdin=b'{"text": "hello"}\n')
    (said,) = found("piped")
    assert said == "standard input cannot be read again, so its documents were not compared"


def test_templates_and_saved_datasets_are_read_as_the_build_read_them(here: Path) -> None:
    columns = {"title": ["A", "B"], "body": ["first words", "second words"]}
    rows = datasets.Dataset.from_dict(columns)
    datasets.DatasetDict({"one": rows, "two": rows.select([1])}).save_to_disk("saved")
    built(sources=["saved"], split="two", text_template="{title}: {body}", output="other")
    verdict = verify("other", level="full")
    assert (verdict.sound, verdict.sampled) == (True, 1)


def test_a_tokenizer_that_the_manifest_does_not_name_is_asked_for(here: Path) -> None:
    manifest = read_manifest(here / "out")
    run_part = {key: value for key, value in manifest.run.items() if key != "given"}
    unnamed = write_manifest(here / "out", manifest.data, run_part)
    with refused(ConfigError, "does not name the tokenizer's path; give it with tokenizer"):
        recorded_tokenizer(unnamed)
    digest = manifest.data["inputs"]["tokenizer"]["sha256"]
    assert recorded_tokenizer(unnamed, "tok").sha256 == digest
