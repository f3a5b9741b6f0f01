"""Counts, shares and sizes of every option, in Python, YAML, sources, phases and commands."""

from dataclasses import fields
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep import BuildConfig
from packprep.config.grammar.amounts import count_of, share_of, size_of, without_percent
from packprep.config.values import value_of
from packprep.support.errors import ConfigError
from tests.helpers.errors import refused
from tests.helpers.files import config

UNITS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
SIZES = {"": 1, "KB": 10**3, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, " gb": 10**9}
_INTS = (int, int | None)
COUNTS = [f for f in fields(BuildConfig) if f.metadata["metavar"] == "N" and f.type in _INTS]
SHARES = [f for f in fields(BuildConfig) if f.metadata["metavar"] == "SHARE"]


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)))
def test_a_count_is_a_number_and_a_unit(number: int, unit: str) -> None:
    assert count_of(f"{number}{unit}") == number * UNITS[unit]
    assert count_of(f" {number} {unit.lower()} ") == number * UNITS[unit]
    if unit:
        assert count_of(f"{number}.5{unit}") == (2 * number + 1) * UNITS[unit] // 2


@given(st.integers(0, 10**6), st.integers(0, 6))
def test_a_percentage_is_exactly_its_hundredth(digits: int, places: int) -> None:
    whole, rest = divmod(digits, 10**places)
    text = f"{whole}.{rest:0{places}}%" if places else f"{whole}%"
    assert Fraction(str(without_percent(text))) == Fraction(digits, 10 ** (places + 2))
    assert share_of(text) == float(Fraction(digits, 10 ** (places + 2)))


@given(st.integers(1, 10**6), st.sampled_from(sorted(SIZES)))
def test_a_size_is_its_number_times_its_unit(number: int, unit: str) -> None:
    assert size_of(f"{number}{unit}") == number * SIZES[unit]
    if unit:
        assert size_of(f"{number}.5{unit}") == (2 * number + 1) * SIZES[unit] // 2


def test_other_texts_are_no_count_no_share_and_no_size() -> None:
    for text in ("", "k", "1.5", "2kk", "1e3", "2,000", "0.0001k", "nan", "٣k", "1 2"):
        assert count_of(text) is None, text
    for text in ("%", "1%%", "x%", "nan%", "1e2%", "-1%", "1/3%"):
        assert share_of(text) is None, text
    sizes: list[Any] = ["lots", "", "1.2.3MB", "-5MB", "5XB", True, None]
    for size in sizes:
        with refused(ConfigError, f"shard_size is {size!r}", "500MB"):
            config(shard_size=size)


def test_every_count_and_share_of_a_build_is_read_with_a_unit() -> None:
    for field in COUNTS:
        assert (value_of(field, "2Ki"), value_of(field, "2k")) == (2048, 2000)
    for field in SHARES:
        assert value_of(field, "1%") == value_of(field, "0.01") == 0.01
    for field, kind in ((COUNTS[0], "whole number"), (SHARES[0], "share")):
        with refused(ConfigError, f"{field.name} is 'some'", kind):
            value_of(field, "some")


def test_a_length_in_thousands_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert config(max_length="8k").max_length == 8000
    err = capsys.readouterr().err
    assert ("8,000" in err, "8Ki is 8,192" in err) == (True, True)
