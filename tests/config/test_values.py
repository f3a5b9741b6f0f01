from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.config.values import parse_size
from packprep.support.errors import ConfigError
from tests.helpers.files import config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500MB", 500_000_000),
        ("64MiB", 64 << 20),
        ("1.5gb", 1_500_000_000),
        ("4096", 4096),
        ("2 KiB", 2048),
        (7, 7),
    ],
)
def test_sizes_are_decimal_or_binary_and_may_be_plain_bytes(text: str | int, expected: int) -> None:
    assert parse_size(text, "window") == expected


@pytest.mark.parametrize("text", ["lots", "", "1.2.3MB", "-5MB", "5XB", True, None])
def test_an_invalid_size_names_the_option_and_shows_an_example(text: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"shard_size is .*, expected a size such as 500MB or 64MiB"
    ):
        config(shard_size=text)


@given(st.integers(1, 10**6), st.sampled_from([("KB", 10**3), ("MiB", 2**20), ("GB", 10**9)]))
def test_a_size_is_its_number_times_its_unit(number: int, unit: tuple[str, int]) -> None:
    assert parse_size(f"{number}{unit[0]}", "window") == number * unit[1]
