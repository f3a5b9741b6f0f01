"""`verify --level full`: sampled rows are read and tokenized again.

What differs from the packs is named.
"""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest

from packprep import build
from packprep.engines.tokenizer import recorded_tokenizer
from packprep.inspect.retokenize import Sample
from packprep.inspect.verify import verify
from packprep.schemas import digest_of, read_manifest
from packprep.schemas.storage.writing import write_manifest
from packprep.support.errors import ConfigError
from tests.chat.test_build import TEMPLATE
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.files import config
from tests.helpers.planted import Packs, packs_of, plant


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with two sources and an output named by relative paths."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", texts(40))
    (tmp_path / "b.jsonl.gz").write_bytes(
        gzip.compress(b'{"text": "one more"}\n{"text": "and another"}\n')
    )
    save_tokenizer(tmp_path / "tok")
    built()
    return tmp_path


def built(**options: Any) -> None:
    given = {
        "sources": ["a.jsonl", "b.jsonl.gz"],
        "output": "out",
        "tokenizer": "tok",
        "max_length": 64,
    } | options
    build(config(**given))


def found(**options: Any) -> list[str]:
    return [str(finding) for finding in verify("out", level="full", **options).findings]


def test_every_row_is_compared_where_the_sample_is_large_enough(here: Path) -> None:
    verdict = verify("out", level="full", sample=1000)
    assert (verdict.sound, verdict.sampled) == (True, 42)
    assert verify("out", level="full", sample=7).sampled == 7
    assert verify("out", level="full", sample=0).sampled == 0


def test_the_seed_chooses_other_rows() -> None:
    class Rows:
        sources = type("Sources", (), {"total": 10_000})

    drawn = [Sample(Rows(), 50, seed).rows.tolist() for seed in (0, 0, 1)]  # type: ignore[arg-type]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] == sorted(set(drawn[0]))
    assert len(drawn[0]) == 50


def test_ids_that_another_tokenizer_gave_are_found_though_every_digest_is_right(here: Path) -> None:
    pack = next(
        number for number, pack in enumerate(packs_of(here / "out")) if pack["cu_seqlens"][1] > 5
    )

    def edit(packs: Packs) -> None:
        packs[pack]["tokens"][3] = 300

    plant(here / "out", edit)
    assert verify("out").sound
    (said,) = found()
    row = packs_of(here / "out")[pack]["document_ids"][0]
    start = packs_of(here / "out")[pack]["document_starts"][0]
    assert said.startswith(
        f"data-00000-of-00001.arrow pack {pack} segment 0: 1 ids differ from those of a.jsonl row "
        f"{row}"
    )
    assert f"first at token {start + 3}: 300 here, " in said


def test_a_document_replaced_by_a_copy_of_another_of_its_length_is_found(here: Path) -> None:
    """Digests, counts, BOS and EOS are as they should be, so nothing but the source can tell."""
    write_jsonl(here / "c.jsonl", ["qz", "zq"])
    built(sources=["c.jsonl"], output="out", overwrite=True, order="input")
    (pack,) = packs_of(here / "out")
    assert pack["cu_seqlens"] == [0, 4, 8]

    def edit(packs: Packs) -> None:
        packs[0]["tokens"][4:] = packs[0]["tokens"][:4]

    plant(here / "out", edit)
    assert verify("out").sound
    (said,) = found()
    assert said.startswith(
        "data-00000-of-00001.arrow pack 0 segment 1: 2 ids differ from those of c.jsonl row 1"
    )


def test_a_missing_source_is_a_sentence_and_root_says_where_it_is_now(
    here: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    out = here / "out"
    said = [str(finding) for finding in verify(out, level="full").findings]
    assert said == ["the tokenizer tok does not exist; give its new path with --tokenizer"]
    said = [
        str(finding) for finding in verify(out, level="full", tokenizer=str(here / "tok")).findings
    ]
    assert said == [
        f"the source {name} does not exist; run in the folder of the build, or give that folder "
        "with --root"
        for name in ("a.jsonl", "b.jsonl.gz")
    ]
    assert verify(out, level="full", root=here).sound


def test_a_changed_source_is_a_sentence_and_the_others_are_still_compared(here: Path) -> None:
    write_jsonl(here / "a.jsonl", [*texts(40)[:-1], "changed"])
    verdict = verify("out", level="full")
    (finding,) = verdict.findings
    assert (
        str(finding)
        == "the source a.jsonl has changed since the build; its documents were not compared"
    )
    assert verdict.sampled == 2


def test_another_tokenizer_is_a_sentence(here: Path) -> None:
    (here / "tok" / "tokenizer.json").write_text(
        (here / "tok" / "tokenizer.json").read_text() + " "
    )
    (said,) = found()
    assert said.startswith("tok is not the tokenizer of this output: it has sha256")


def test_standard_input_cannot_be_read_again(here: Path) -> None:
    run("build", "-", "-o", "piped", "--tokenizer", "tok", stdin=b'{"text": "hello"}\n')
    verdict = verify("piped", level="full")
    assert [str(finding) for finding in verdict.findings] == [
        "standard input cannot be read again, so its documents were not compared"
    ]


def test_an_option_of_a_newer_packprep_is_a_sentence(here: Path) -> None:
    manifest = read_manifest(here / "out")
    data = json.loads(json.dumps(manifest.data))
    data["inputs"]["options"]["colour"] = "blue"
    data["identity"] = digest_of(data["inputs"])
    write_manifest(here / "out", data, manifest.run)
    (said,) = found()
    assert (
        said
        == "manifest.json has the option 'colour', which this packprep does not know; use a newer "
        "one"
    )


def test_templates_and_saved_datasets_are_read_as_the_build_read_them(here: Path) -> None:
    rows = datasets.Dataset.from_dict(
        {"title": ["A", "B"], "body": ["first words", "second words"]}
    )
    datasets.DatasetDict({"one": rows, "two": rows.select([1])}).save_to_disk("saved")
    built(sources=["saved"], split="two", text_template="{title}: {body}", output="other")
    verdict = verify("other", level="full")
    assert (verdict.sound, verdict.sampled) == (True, 1)


def test_rows_of_token_ids_are_compared_without_a_tokenizer(here: Path) -> None:
    rows = [
        {
            "input_ids": [5, 6, 7, 8, 9][: number % 5 + 1] * 30,
            "mask": [0, 1, 1, 0, 1][: number % 5 + 1] * 30,
        }
        for number in range(20)
    ]
    write_jsonl(here / "ids.jsonl", rows)
    numbers = {
        "sources": ["ids.jsonl"],
        "input_ids_column": "input_ids",
        "loss_mask_column": "mask",
    }
    built(**numbers, tokenizer=None, vocab_size=10, output="other")
    verdict = verify("other", level="full")
    assert (verdict.sound, verdict.sampled) == (True, 20), list(map(str, verdict.findings))
    built(
        **numbers,
        bos="<s>",
        eos="</s>",
        overflow="truncate",
        truncation_side="balanced",
        output="more",
    )
    verdict = verify("more", level="full")
    assert (verdict.sound, verdict.sampled) == (True, 20), list(map(str, verdict.findings))

    def edit(packs: Packs) -> None:
        packs[0]["tokens"][2] = 1 + packs[0]["tokens"][2] % 9

    plant(here / "other", edit)
    (said,) = [str(finding) for finding in verify("other", level="full").findings]
    assert said.startswith(
        "data-00000-of-00001.arrow pack 0 segment 0: 1 ids differ from those of ids.jsonl row"
    )


def test_a_text_cut_in_its_middle_is_compared_whatever_type_its_token_files_have(
    here: Path,
) -> None:
    save_tokenizer(
        here / "chat", config={"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    )
    chat = [
        {"role": "user", "content": "the dog " * 9},
        {"role": "assistant", "content": "the cat " * 9},
    ]
    write_jsonl(here / "chat.jsonl", [{"messages": chat}])
    more = {"messages_column": "messages", "overflow": "truncate", "truncation_side": "balanced"}
    built(sources=("chat.jsonl",), tokenizer="chat", output="chats", max_length=32, **more)
    assert read_manifest("chats").ledger["truncated"] > 0
    assert list(map(str, verify("chats", level="full").findings)) == []


def test_a_tokenizer_that_the_manifest_does_not_name_is_asked_for(here: Path) -> None:
    manifest = read_manifest(here / "out")
    run_part = {key: value for key, value in manifest.run.items() if key != "given"}
    unnamed = write_manifest(here / "out", manifest.data, run_part)
    with pytest.raises(
        ConfigError, match="does not name the tokenizer's path; give it with --tokenizer"
    ):
        recorded_tokenizer(unnamed)
    assert (
        recorded_tokenizer(unnamed, "tok").sha256 == manifest.data["inputs"]["tokenizer"]["sha256"]
    )


def test_the_command_says_how_many_were_tokenized_again(here: Path) -> None:
    result = run("verify", "out", "--level", "full", "--sample", 5)
    assert result.code == 0
    assert "tokenized again  5 rows" in result.out
    shutil.rmtree(here / "tok")
    result = run("verify", "out", "--level", "full", "--sample", 5)
    assert (result.code, result.out.splitlines()[0]) == (
        1,
        "tokenizer  the tokenizer tok does not exist; give its new path with --tokenizer",
    )
