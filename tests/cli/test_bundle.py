"""`env --bundle` writes the facts of a build for an issue, and nothing secret."""

import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packprep.cli.bundle import write_bundle
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, write_jsonl

DOCUMENT = "the quick brown fox jumps over the lazy dog"
# Made up, like all secrets here; each is planted in a build or in the environment.
ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY",
    "HF_TOKEN": "plainwordsecret",
    "HTTPS_PROXY": "http://me:proxypassword@proxy",
    "MY_API_KEY": "per cent/secret",
}
FACTS = ["build.yaml", "dataset_info.json", "manifest.json", "report.json", "state.json"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an output `out`, and `out.incomplete` of a build that failed."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        rows = [{"text": f"{DOCUMENT} {number}"} for number in range(20)]
        write_jsonl(folder / "a.jsonl", rows)
        save_tokenizer(folder / "tok")
        assert run("build", "a.jsonl", "-o", "out", "--tokenizer", "tok").code == 0
        options = ["--tokenizer", "tok", "--min-document-tokens", "100000"]
        assert run("build", "a.jsonl", "-o", "next", *options).code == 2
        Path("next.incomplete").rename("out.incomplete")
    return folder


@pytest.fixture
def here(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of `built` as the working folder."""
    folder = tmp_path / "here"
    shutil.copytree(built, folder)
    monkeypatch.chdir(folder)
    return folder


def bundle(*arguments: object) -> dict[str, bytes]:
    """Files of a new bundle by name."""
    result = run("env", "--bundle", "bundle.zip", *arguments)
    assert result.code == 0, result.err
    files = files_in(Path("bundle.zip"))
    assert result.out == (
        f"bundle.zip: {len(files)} files; read them before you attach it to an issue\n"
    )
    Path("bundle.zip").unlink()
    return files


def files_in(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def left_out(files: dict[str, bytes], folder: str = "output") -> dict[str, str]:
    listing = json.loads(files[f"{folder}/files.json"])
    return {entry["name"]: entry["left_out"] for entry in listing if "left_out" in entry}


def test_a_bundle_has_the_facts_of_an_output_and_of_an_unfinished_build(here: Path) -> None:
    files = bundle("out")
    unfinished = [name for name in files if name.startswith("output.incomplete/")]
    assert [name for name in files if name not in unfinished] == [
        "env.json",
        *(f"output/{name}" for name in sorted([*FACTS, "files.json"])),
    ]
    assert {name.split("/")[1] for name in unfinished} == {
        "build.json",
        "files.json",
        "receipts",
        "tokens",
    }
    assert json.loads(files["env.json"]) == json.loads(run("env", "--json").out)
    for name in ("manifest.json", "report.json", "state.json"):
        assert json.loads(files[f"output/{name}"]) == json.loads((here / "out" / name).read_text())
    listing = json.loads(files["output/files.json"])
    assert {entry["name"]: entry["bytes"] for entry in listing} == {
        path.name: path.stat().st_size for path in (here / "out").iterdir()
    }
    assert left_out(files) == {}


def test_a_bundle_without_an_output_has_the_environment_alone(here: Path) -> None:
    assert list(bundle()) == ["env.json"]


def test_the_folder_of_an_unfinished_build_may_be_named_itself(here: Path) -> None:
    files = bundle("out.incomplete")
    assert {name.split("/")[0] for name in files} == {"env.json", "output.incomplete"}


def test_no_text_of_a_document_is_in_a_bundle(here: Path) -> None:
    (here / "out" / "quarantine.jsonl").write_text(json.dumps({"text": DOCUMENT}))
    build = here / "out.incomplete" / "build.json"
    facts = json.loads(build.read_text())
    assert facts["failed"].startswith("no document is left")
    build.write_text(json.dumps(facts | {"failed": f"a.jsonl row 1 is '{DOCUMENT}'"}))
    (here / "out" / "report.json").write_text(f'{{"broken": "{DOCUMENT}')
    files = bundle("out")
    assert not [name for name, content in files.items() if b"quick brown" in content]
    assert json.loads(files["output.incomplete/build.json"])["failed"] == "***"
    assert left_out(files) == {
        "report.json": "not JSON: Unterminated string starting at at character 11"
    }


def plant(path: Path, **values: Any) -> None:
    """Add entries to the JSON of a file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_no_planted_secret_is_in_a_bundle(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    web = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwbGFudGVkIn0.c2lnbmF0dXJl"
    secrets = [
        "https://user:urlpassword@host/a.jsonl",
        "s3://bucket/a.jsonl?X-Amz-Signature=signedvalue&X-Amz-Date=1",
        "/data/token=pathtoken1/a.jsonl",
        "/data/hf_AbCdEfGhIjKlMnOpQrStUv/a.jsonl",
        "glpat-AbCdEfGhIjKlMnOpQrSt",
        f"Bearer {web}",
        web,
        "/x/wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY/y",
        "prefix-plainwordsecret-suffix",
        "http://elsewhere/proxypassword",
        "s3://bucket/per%20cent%2Fsecret",
        str(Path.home() / "a.jsonl"),
    ]
    variables = json.dumps({"api_key": "variablekey", "style": "short", "n": 1})
    option = {"template_variables": variables, "text_template": "{text} password=templateword"}
    nested = {
        "options": option,
        "names": {"hf_ZyXwVuTsRqPoNmLkJiHg.jsonl": [{"Auth": "headerword"}]},
    }
    for name in ("out/manifest.json", "out/report.json", "out.incomplete/build.json"):
        plant(here / name, names=secrets, inputs=nested, access_token=12345678)
    settings = (here / "out" / "build.yaml").read_text()
    text = json.dumps("tokens/password=yamlword")
    (here / "out" / "build.yaml").write_text(
        f"{settings}keep_tokens: {text}\ntemplate_variables: {json.dumps(variables)}\n"
    )
    files = bundle("out")
    everything = b"\n".join(files.values()).decode()
    planted = [
        *("urlpassword", "signedvalue", "pathtoken1", "AbCdEfGhIj", "eyJ", "wJalrXUtnFEMI"),
        *("plainwordsecret", "proxypassword", "per cent", "per%20cent", "variablekey"),
        *("templateword", "ZyXwVuTsRq", "headerword", "12345678", "yamlword", str(Path.home())),
    ]
    assert [secret for secret in planted if secret in everything] == []
    manifest = json.loads(files["output/manifest.json"])
    assert manifest["names"][:3] == [
        "https://***@host/a.jsonl",
        "s3://bucket/a.jsonl?***",
        "/data/token=***/a.jsonl",
    ]
    assert manifest["names"][-1] == "~/a.jsonl"
    shown = json.loads(manifest["inputs"]["options"]["template_variables"])
    assert shown == {"api_key": "***", "style": "short", "n": 1}
    assert manifest["access_token"] == "***"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=6, max_size=40),
    st.sampled_from(["{}", "/data/{}/a", "s3://bucket/{}", "x={}", "{{'{}': 1}}"]),
)
def test_the_value_of_a_secret_variable_is_shown_nowhere(
    tmp_path: Path, secret: str, form: str
) -> None:
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    (out / "report.json").write_text(json.dumps({"a": [form.format(secret)], secret: 1}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", {"HOME": "/nowhere", "HF_TOKEN": secret})
        write_bundle(tmp_path / "bundle.zip", str(out))
    report = json.loads(files_in(tmp_path / "bundle.zip")["output/report.json"])
    (tmp_path / "bundle.zip").unlink()
    assert report == {"a": [form.format("***")], "***": 1}


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        *[
            (key, "***")
            for key in ("api_key", "accessToken", "HF_TOKEN", "password", "X-Auth", "key")
        ],
        *[(key, "word") for key in ("gigatoken", "tokens", "monkey", "key_column", "tokenizer")],
    ],
)
def test_a_value_is_hidden_if_its_key_says_that_it_is_secret(
    here: Path, key: str, shown: str
) -> None:
    plant(here / "out" / "report.json", options={key: "word"})
    assert json.loads(bundle("out")["output/report.json"])["options"] == {key: shown}


def test_special_tokens_of_a_tokenizer_stay(here: Path) -> None:
    special = {"bos": {"id": 1, "token": "<|begin|>"}, "variables": {"bos_token": "[CLS]"}}
    plant(here / "out" / "manifest.json", tokenizer=special)
    assert json.loads(bundle("out")["output/manifest.json"])["tokenizer"] == special


def test_damaged_missing_and_strange_files_are_named_and_the_rest_is_written(here: Path) -> None:
    out = here / "out"
    (out / "manifest.json").write_bytes(b"\x80\x00" * 9)
    (out / "build.yaml").write_text("a: [1")
    (out / "dataset_info.json").unlink()
    (out / "report.json").unlink()
    (out / "report.json").symlink_to(here / "a.jsonl")
    (out / "state.json").write_text("[" * 100_000)
    files = bundle("out")
    assert [name for name in files if name.startswith("output/")] == ["output/files.json"]
    assert left_out(files) == {
        "build.yaml": "not YAML as packprep writes it",
        "manifest.json": "not JSON: Expecting value at character 0",
        "report.json": "not a regular file",
        "state.json": "not JSON as packprep writes it",
    }


def test_only_the_first_thousand_receipts_of_a_folder_are_included(here: Path) -> None:
    receipts = here / "out.incomplete" / "receipts"
    for number in range(1002):
        (receipts / f"train-{number:05d}.json").parent.mkdir(exist_ok=True)
        (receipts / f"train-{number:05d}.json").write_text("{}")
    files = bundle("out.incomplete")
    assert sum("/receipts/" in name for name in files) == 1000
    assert left_out(files, "output.incomplete") == {
        f"receipts/train-{number:05d}.json": "the first 1,000 receipts are included"
        for number in (1000, 1001)
    }


def test_the_same_files_give_the_same_bytes(here: Path) -> None:
    write_bundle(Path("a.zip"), "out")
    shutil.copytree("out", "copy/out")
    shutil.copytree("out.incomplete", "copy/out.incomplete")
    write_bundle(Path("b.zip"), "copy/out")
    assert Path("a.zip").read_bytes() == Path("b.zip").read_bytes()


def test_a_file_is_never_overwritten(here: Path) -> None:
    Path("bundle.zip").write_text("mine")
    result = run("env", "--bundle", "bundle.zip", "out")
    assert (result.code, result.out, result.err) == (
        2,
        "",
        "packprep: bundle.zip exists; choose another name, or delete it\n",
    )
    assert Path("bundle.zip").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--bundle", "none/b.zip"],
            "none/b.zip cannot be written: No such file or directory; choose another place",
        ),
        (
            ["--bundle", "b.zip", "tok"],
            "tok has no files of a build; give an output of packprep, or its .incomplete folder",
        ),
        (
            ["--bundle", "b.zip", "nowhere"],
            "nowhere has no files of a build; give an output of packprep, or its .incomplete "
            "folder",
        ),
        (["out"], "out is read for a bundle only; add --bundle FILE; see packprep env --help"),
    ],
)
def test_wrong_arguments_are_one_sentence(here: Path, arguments: list[str], sentence: str) -> None:
    result = run("env", *arguments)
    assert (result.code, result.err) == (2, f"packprep: {sentence}\n")
    assert not Path("b.zip").exists()


def test_an_output_in_a_store_is_read_by_its_url(here: Path) -> None:
    local = {name: content for name, content in bundle("out").items() if "incomplete" not in name}
    import fsspec

    store = fsspec.filesystem("memory")
    store.put("out/", "/bundles/out", recursive=True)
    try:
        assert bundle("memory://bundles/out") == local
    finally:
        store.rm("/bundles", recursive=True)


def test_json_lists_the_files(here: Path) -> None:
    shown = json.loads(run("env", "--json", "--bundle", "b.zip", "out").out)
    assert shown == {"bundle": "b.zip", "files": list(files_in(Path("b.zip")))}
