"""`env` prints the facts for a bug report, and nothing private."""

import importlib.metadata

import pytest

from packprep.cli.environment import environment
from tests.helpers.command import run


def test_a_missing_package_is_reported_as_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert set(environment()["packages"].values()) == {None}
    assert "not installed" in run("env").out


def test_secrets_and_paths_of_the_environment_are_not_printed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "HF_ENDPOINT", "HTTPS_PROXY", "HOME"):
        value = "http://me:secret@host" if name.startswith("H") else "secret"
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RAYON_NUM_THREADS", "3")
    for result in (run("env"), run("env", "--json")):
        assert (result.code, "secret" in result.out) == (0, False)
        assert "RAYON_NUM_THREADS" in result.out
