"""`env` prints the facts for a bug report, and nothing private."""

import importlib.metadata
import json
import os
import sys
import tomllib
from pathlib import Path

import pytest

from packprep import __version__
from packprep.cli.environment import environment
from tests.helpers.command import run


def test_versions_are_those_that_are_installed() -> None:
    found = environment()
    assert found["packprep"] == __version__
    assert found["packages"]["numpy"] == importlib.metadata.version("numpy")
    assert found["machine"]["cores"] == os.cpu_count()
    assert found["python"].endswith(".".join(map(str, sys.version_info[:3])))


def test_the_version_is_that_of_pyproject() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert (project["version"], importlib.metadata.version("packprep")) == (
        __version__,
        __version__,
    )


def test_a_missing_package_is_reported_as_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert set(environment()["packages"].values()) == {None}
    assert "not installed" in run("env").out


def test_secrets_and_paths_of_the_environment_are_not_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secrets = {
        "HF_TOKEN": "hf_secret",
        "AWS_SECRET_ACCESS_KEY": "aws_secret",
        "HF_ENDPOINT": "https://me:secret@host",
        "HTTPS_PROXY": "http://me:secret@proxy",
        "HOME": "/home/secret",
    }
    for name, value in {**secrets, "RAYON_NUM_THREADS": "3"}.items():
        monkeypatch.setenv(name, value)
    for result in (run("env"), run("env", "--json")):
        assert result.code == 0
        assert "secret" not in result.out
        assert "RAYON_NUM_THREADS" in result.out


def test_the_table_and_the_json_have_the_same_facts() -> None:
    found = json.loads(run("env", "--json").out)
    table = run("env").out
    assert table.startswith(f"packprep {__version__}\n")
    for name, version in found["packages"].items():
        assert any(
            line.split() == [name, *(version or "not installed").split()]
            for line in table.splitlines()
        )
