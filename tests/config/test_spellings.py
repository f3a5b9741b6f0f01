from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, TokenizeAndPack, build
from packprep.config.spellings import GONE, RENAMED, SPELLINGS
from packprep.config.yaml_file import from_output, from_yaml
from packprep.support.errors import ConfigError
from tests.helpers.command import run
from tests.helpers.errors import refused

OPTIONS = {field.name for field in fields(BuildConfig)}


def test_every_spelling_leads_to_an_option_and_is_none_itself() -> None:
    assert set(SPELLINGS.values()) <= OPTIONS
    assert not SPELLINGS.keys() & OPTIONS


def test_a_name_of_another_tool_is_answered_in_yaml_and_python(tmp_path: Path) -> None:
    path = tmp_path / "build.yaml"
    path.write_text("seq-len: 128\n")
    with refused(ConfigError, "build.yaml: seq_len is called max_length here"):
        from_yaml(path)
    with refused(ConfigError, "TokenizeAndPack: packing_strategy is called strategy"):
        TokenizeAndPack(None, packing_strategy="bfd")
    with refused(ConfigError, "source b: text_field is called text_column here"):
        BuildConfig(sources=({"path": "b", "text_field": "body"},))


@pytest.mark.parametrize("option", GONE)
def test_an_option_that_is_gone_is_answered_with_what_serves_instead(
    tmp_path: Path, option: str
) -> None:
    assert option not in OPTIONS
    flag, path = "--" + option.replace("_", "-"), tmp_path / "build.yaml"
    path.write_text(f"{option}: 2\nseed: 3\n")
    for command in ("build", "plan"):
        result = run(command, flag)
        assert result.code == 2
        assert result.err.startswith(f"packprep: {flag} is gone: {GONE[option]}; see")
    wrong: dict[str, Any] = {option: 2}
    with pytest.raises(ConfigError, match=f"^{option} is gone: "):
        BuildConfig(**wrong)
    with pytest.raises(ConfigError, match=f"build.yaml: {option} is gone: "):
        from_yaml(path)
    assert from_output(path) == {"seed": 3}  # an output of before can still be read


@pytest.mark.parametrize("name", ["nonsense", "max_lenght", "max_length"])
def test_an_unknown_keyword_names_build_config_and_a_near_option(name: str) -> None:
    wrong: dict[str, Any] = {name: 1}
    near, shown = ("", "...") if name == "nonsense" else ("'max_length'?", "max_length=...")
    if name not in OPTIONS:
        with refused(TypeError, f"BuildConfig has no option {name!r}", near):
            BuildConfig(**wrong)
    with refused(TypeError, f"build has no argument {name!r}", f"BuildConfig({shown})"):
        build(BuildConfig(), **wrong)


@pytest.mark.parametrize(("earlier", "name"), RENAMED.items())
def test_an_earlier_name_is_accepted_in_yaml_and_python_with_a_line_that_names_the_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], earlier: str, name: str
) -> None:
    new: dict[str, Any] = {name: 7}
    old: dict[str, Any] = {earlier: 7}
    expected = BuildConfig(**new)
    assert BuildConfig(**old) == expected
    assert expected.identity()[earlier] == 7  # manifests keep it
    assert capsys.readouterr() == ("", f"packprep: {earlier} is called {name} now\n")
    path = tmp_path / "build.yaml"
    path.write_text(f"{earlier.replace('_', '-')}: 7\n")
    assert BuildConfig(**from_yaml(path)) == expected
    assert capsys.readouterr().err == f"packprep: {path}: {earlier} is called {name} now\n"
    phases = ({"tokens": 50, earlier: 7}, {"tokens": 50})
    config = BuildConfig(sources=("a.jsonl",), phases=phases)
    assert capsys.readouterr() == ("", f"packprep: phase 1: {earlier} is called {name} now\n")
    assert getattr(config.phase_list()[0], name) == 7
    with pytest.raises(ConfigError, match=rf"^{earlier} and {name} are one option; leave out"):
        BuildConfig(**old, **new)
