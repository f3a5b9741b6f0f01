from dataclasses import fields, replace
from inspect import signature
from pathlib import Path

import pytest

from packprep import BuildConfig, TokenizeAndPack
from packprep.config.options import Options
from packprep.config.spellings import SPELLINGS
from packprep.config.yaml_file import from_yaml
from packprep.support.errors import ConfigError

OPTIONS = {field.name for field in fields(BuildConfig)}


def test_every_spelling_leads_to_an_option_and_is_none_itself() -> None:
    assert set(SPELLINGS.values()) <= OPTIONS
    assert not SPELLINGS.keys() & OPTIONS


def test_a_name_of_another_tool_is_answered_in_yaml_and_python(tmp_path: Path) -> None:
    path = tmp_path / "build.yaml"
    path.write_text("seq-len: 128\nsources: [a.jsonl]\n")
    with pytest.raises(ConfigError, match=r"build\.yaml: seq_len is called max_length here$"):
        from_yaml(path)
    with pytest.raises(ConfigError, match=r"^seq_len is called max_length here$"):
        BuildConfig(sources=("a.jsonl",), seq_len=128)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"^TokenizeAndPack: packing_strategy is called strategy"):
        TokenizeAndPack(None, packing_strategy="bfd")
    with pytest.raises(ConfigError, match=r"^source b: text_field is called text_column here$"):
        BuildConfig(sources=({"path": "b", "text_field": "body"},))


def test_any_other_unknown_name_in_python_stays_a_type_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        BuildConfig(nonsense=1)  # type: ignore[call-arg]


def test_the_signature_of_build_config_still_lists_the_options() -> None:
    assert signature(BuildConfig) == signature(Options)
    assert set(signature(BuildConfig).parameters) == OPTIONS
    assert replace(BuildConfig(), max_length=128).max_length == 128
