"""Counts and shares of every option, in Python, YAML, sources, phases and commands."""

import importlib
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import BuildConfig
from packprep.cli.main import COMMANDS, module_of
from packprep.config.amounts import count_of, share_of, without_percent
from packprep.config.values import value_of
from packprep.config.yaml_file import from_yaml
from packprep.support.errors import ConfigError

UNITS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "Ki": 2**10, "Mi": 2**20}
COUNTS = [f for f in fields(BuildConfig) if f.type in (int, int | None) and not f.metadata["size"]]
SHARES = [f for f in fields(BuildConfig) if f.metadata["metavar"] == "SHARE"]


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)))
def test_a_count_is_a_number_and_a_unit(number: int, unit: str) -> None:
    assert count_of(f"{number}{unit}") == number * UNITS[unit]
    assert count_of(f" {number} {unit.lower()} ") == number * UNITS[unit]
    if unit:
        assert count_of(f"{number}.5{unit}") == (2 * number + 1) * UNITS[unit] // 2


@pytest.mark.parametrize(
    "text", ["", "k", "1.5", "2kk", "1e3", "2,000", "0.0001k", "nan", "٣k", "1 2"]
)
def test_other_texts_are_no_count(text: str) -> None:
    assert count_of(text) is None


@given(st.integers(0, 10**6), st.integers(0, 6))
def test_a_percentage_is_exactly_its_hundredth(digits: int, places: int) -> None:
    whole, rest = divmod(digits, 10**places)
    text = f"{whole}.{rest:0{places}}%" if places else f"{whole}%"
    assert Fraction(str(without_percent(text))) == Fraction(digits, 10 ** (places + 2))
    assert share_of(text) == float(Fraction(digits, 10 ** (places + 2)))


@pytest.mark.parametrize("text", ["%", "1%%", "x%", "nan%", "1e2%", "-1%", "1/3%"])
def test_other_texts_are_no_share(text: str) -> None:
    assert share_of(text) is None


@pytest.mark.parametrize("field", COUNTS, ids=lambda field: field.name)
def test_every_count_of_a_build_is_read_with_a_unit(field: Any) -> None:
    assert value_of(field, "2Ki") == 2048
    assert value_of(field, "2k") == 2000
    with pytest.raises(ConfigError, match=f"^{field.name} is 'some', expected a whole number such"):
        value_of(field, "some")


@pytest.mark.parametrize("field", SHARES, ids=lambda field: field.name)
def test_every_share_of_a_build_is_read_as_percent(field: Any) -> None:
    assert value_of(field, "1%") == value_of(field, "0.01") == 0.01
    with pytest.raises(
        ConfigError, match=f"^{field.name} is 'some', expected a share such as 0.01"
    ):
        value_of(field, "some")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_share_of_a_command_is_read_as_percent(name: str) -> None:
    command = importlib.import_module(module_of(name)).command
    for option in command.params:
        if isinstance(option, click.Option) and option.metavar == "SHARE":
            value = option.type.convert("5%", option, None)
            for field in SHARES:
                value = value_of(field, value) if field.name == option.name else value
            assert value == 0.05


def test_the_same_numbers_in_yaml_give_the_same_build(tmp_path: Path) -> None:
    path = tmp_path / "build.yaml"
    path.write_text(
        "sources:\n"
        "  - {path: a.jsonl, weight: 70%, limit: 2k}\n"
        "  - {path: b.jsonl, weight: 30%}\n"
        "max_length: 2Ki\nmax_tokens: 1.5B\nholdout: 1%\n"
    )
    sources: Any = (
        {"path": "a.jsonl", "weight": 0.7, "limit": 2000},
        {"path": "b.jsonl", "weight": 0.3},
    )
    plain = BuildConfig(sources=sources, max_length=2048, max_tokens=1_500_000_000, holdout=0.01)
    config = BuildConfig(**from_yaml(path))
    assert config.identity() == plain.identity()
    assert config.entries() == plain.entries()


def test_phases_and_sources_have_counts_and_shares_too() -> None:
    phases: Any = (
        {"tokens": "2M", "weights": ["60%", "40%"], "max_length": "4Ki"},
        {"tokens": "500k", "weights": [1, 1], "min_document_tokens": "1k"},
    )
    config = BuildConfig(sources=("a", "b"), phases=phases)
    first, second = config.phase_list()
    assert (first.tokens, first.max_length) == (2_000_000, 4096)
    assert first.shares == (Fraction(3, 5), Fraction(2, 5))
    assert (second.tokens, second.min_document_tokens) == (500_000, 1000)
    lengths: Any = {"by_length": ["1Ki", "2Ki"]}
    ends = [
        phase.max_document_tokens for phase in BuildConfig(sources="a", phases=lengths).phase_list()
    ]
    assert ends == [1024, 2048, None, None]
    amounts: Any = ({"path": "a", "max_tokens": "2k"}, {"path": "b", "epochs": 0.5})
    assert BuildConfig(sources=amounts).entries()[0].max_tokens == 2000


def test_a_length_in_thousands_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    options: Any = {"max_length": "8k"}
    assert BuildConfig(**options).max_length == 8000
    assert capsys.readouterr().err == "packprep: max_length 8k is 8,000 tokens; 8Ki is 8,192\n"
