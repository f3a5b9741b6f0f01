"""The generated pages of the reference are those that the code writes."""

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from packprep.cli.main import COMMANDS
from packprep.config.build_config import BuildConfig
from packprep.config.yaml_file import from_yaml

from .blocks import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "docs"))

import reference

FIELDS = {spec.name: spec for spec in dataclasses.fields(BuildConfig)}


def test_generated_pages_are_those_that_the_code_writes_and_have_every_command_and_option() -> None:
    pages = reference.pages()
    old = [path.name for path, text in pages.items() if path.read_text() != text]
    assert old == [], "run scripts/docs/reference.py"
    heads = {path.name: re.findall(r"^##+ (.*)$", text, re.M) for path, text in pages.items()}
    assert heads["cli.md"] == list(COMMANDS)
    assert set(FIELDS) <= set(heads["options.md"])
    for name in COMMANDS:
        help_page = reference.help_of(name)
        assert help_page.startswith(f"Usage: packprep {name} ")
        assert f"packprep {name} " in help_page.split("Example")[1]
        assert max(map(len, help_page.splitlines())) <= 80
        assert help_page in pages[ROOT / "docs/reference/cli.md"]


@pytest.mark.parametrize("name", FIELDS)
def test_the_yaml_spelling_of_an_option_is_read(name: str, tmp_path: Path) -> None:
    spelling = reference._yaml(FIELDS[name])
    path = tmp_path / "build.yaml"
    path.write_text(spelling)
    assert from_yaml(path) == {name: yaml.safe_load(spelling)[name]}
    if isinstance(FIELDS[name].default, (int, float, str, tuple)) and FIELDS[name].default:
        required: dict[str, Any] = {
            "sources": ("a.jsonl",),
            "output": "packed",
            "tokenizer": "t.json",
        }
        config = BuildConfig(**(required | from_yaml(path)))
        default = BuildConfig(**required)
        assert name in ("num_proc", "max_memory") or getattr(config, name) == getattr(default, name)
