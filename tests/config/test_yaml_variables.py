"""Variables of the environment and included files, in the YAML file of a build."""

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import BuildConfig
from packprep.config.yaml_file import from_output, from_yaml, load_yaml
from packprep.config.yaml_variables import escaped
from packprep.support.errors import ConfigError
from tests.helpers.errors import refused


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and the variables DATA and LENGTH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATA", "/data")
    monkeypatch.setenv("LENGTH", "512")
    monkeypatch.delenv("GONE", raising=False)
    return tmp_path


def options(text: str, name: str = "build.yaml") -> dict[str, Any]:
    Path(name).write_text(text)
    return from_yaml(Path(name))


def test_a_variable_is_its_value_or_its_default(here: Path) -> None:
    assert options(
        'sources: ["${DATA}/a.jsonl", {path: "${GONE:b}/${DATA}.jsonl", label: "${GONE:}"}]\n'
        "output: ${GONE:out}\n"
        "tokenizer: ${DATA}/tok\n"
    ) == {
        "sources": ["/data/a.jsonl", {"path": "b//data.jsonl", "label": ""}],
        "output": "out",
        "tokenizer": "/data/tok",
    }


# What is written in a value, and what it means where A is "a", B is "${A}" and GONE is not set.
WRITTEN = st.recursive(
    st.sampled_from([("x", "x"), (":", ":"), ("$${", "${"), ("${A}", "a")]),
    lambda parts: st.builds(
        lambda name, inner: (
            "${" + name + ":" + "".join(text for text, _ in inner) + "}",
            {"A": "a", "B": "${A}"}.get(name, "".join(meaning for _, meaning in inner)),
        ),
        st.sampled_from(["A", "B", "GONE"]),
        st.lists(parts, max_size=3),
    ),
)


@given(st.lists(WRITTEN, max_size=4))
def test_a_default_may_hold_variables(parts: list[tuple[str, str]]) -> None:
    text, meaning = ("".join(each) for each in zip(("", ""), *parts, strict=True))
    with mock.patch.dict(os.environ, {"A": "a", "B": "${A}"}):
        os.environ.pop("GONE", None)
        found = load_yaml(f"output: '{text}'\n", variables_of="build.yaml")
    assert found == {"output": meaning}


def test_a_variable_in_a_default_is_needed_only_if_the_default_is(here: Path) -> None:
    assert options("output: ${DATA:${GONE}}\nseed: ${GONE:${LENGTH:7}}\n") == {
        "output": "/data",
        "seed": 512,
    }


def test_a_value_without_quotes_is_read_as_yaml_reads_it(here: Path) -> None:
    assert options(
        "max_length: ${LENGTH}\nseed: '${LENGTH}'\nholdout: ${GONE:0.5}\noverwrite: ${GONE:true}\n"
        "limit: ${GONE:null}\n"
    ) == {"max_length": 512, "seed": "512", "holdout": 0.5, "overwrite": True, "limit": None}


def test_a_value_cannot_change_the_structure_of_the_file(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATA", "a\nseed: 7\n- b: {c}")
    assert options("output: ${DATA}\n") == {"output": "a\nseed: 7\n- b: {c}"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('sources: [a, {path: "${GONE}/b"}]\n', "sources[1].path needs the environment variable"),
        ('phases: [{weights: {code: "${GONE}"}}]\n', "phases[0].weights.code needs"),
        *((f"output: 'a{wrong}'\n", f"output has {wrong!r}") for wrong in ("${", "${}", "${1}")),
        *((f"output: 'a{wrong}'\n", f"output has {wrong!r}") for wrong in ("${A B}", "${A")),
        ("output: 'a${A:${B}'\n", "output has '${A:${B}'"),
        ("output: 'a${A:${}}'\n", "output has '${}'"),
        ("output: ${GONE:${LOST}}\n", "output needs the environment variable LOST"),
        ("include: gone.yaml\n", "includes gone.yaml, which does not exist"),
        ("include: {a: b}\n", "has include {'a': 'b'}"),
    ],
)
def test_what_is_wrong_is_refused_with_file_and_key(here: Path, text: str, words: str) -> None:
    with refused(ConfigError, "build.yaml", words):
        options(text)


@given(st.text(st.sampled_from("${}:A"), max_size=12))
def test_an_escaped_text_stands_for_itself(text: str) -> None:
    written = f"output: '{escaped(text)}'\n"
    assert load_yaml(written, variables_of="build.yaml") == {"output": text}
    assert load_yaml(f"output: '{text}'\n") == {"output": text}


def test_the_file_of_an_earlier_output_is_read_as_it_is_and_in_silence(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("build.yaml").write_text(
        "min_len: 3\ntext_template: ${DATA} ${gone}\nphases: [{tokens: 9, max_len: 5}]\n"
    )
    options = from_output(Path("build.yaml"))
    assert options == {
        "min_document_tokens": 3,
        "text_template": "${DATA} ${gone}",
        "phases": [{"tokens": 9, "max_document_tokens": 5}],
    }
    assert BuildConfig(sources="a", **options).phase_list()[0].max_document_tokens == 5
    assert capsys.readouterr() == ("", "")
    BuildConfig(sources="a", phases=[{"tokens": 9, "max_len": 5}])
    line = "packprep: phase 1: max_len is called max_document_tokens now\n"
    assert capsys.readouterr() == ("", line)


def test_a_file_wins_over_those_it_includes_and_a_later_one_over_an_earlier_one(here: Path) -> None:
    (here / "sub" / "deep").mkdir(parents=True)
    options("seed: 1\nlimit: 1\nmax-length: 16\nholdout: 0.1\n", "sub/deep/first.yaml")
    options("include: deep/first.yaml\nlimit: 2\nmax_length: 32\n", "sub/second.yaml")
    options("max_length: 64\n", "third.yaml")
    text = "include: [sub/second.yaml, '${GONE:third}.yaml']\nholdout: 0.5\n"
    assert options(text) == {"seed": 1, "limit": 2, "max_length": 64, "holdout": 0.5}
    assert options("include: third.yaml\n") == {"max_length": 64}


def test_files_that_include_each_other_are_refused(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "b.yaml").write_text("include: ../a.yaml\n")
    with refused(ConfigError, "a.yaml includes sub/b.yaml includes sub/../a.yaml"):
        options("include: sub/b.yaml\n", "a.yaml")
    for number in range(12):
        (here / f"{number}.yaml").write_text(f"include: {number + 1}.yaml\n")
    with refused(ConfigError, "is included through 8 files"):
        options("include: 0.yaml\n")
    options("seed: 1\n", "shared.yaml")
    options("include: shared.yaml\n", "c.yaml")
    assert options("include: [shared.yaml, c.yaml]\n", "twice.yaml") == {"seed": 1}
