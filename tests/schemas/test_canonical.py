"""Every value has one canonical form, and any other form is refused."""

import doctest
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas import FormatError, canonical, canonical_json, digest_of
from packprep.schemas.canonical import parse_canonical

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_ATOMS = st.none() | st.booleans() | st.integers() | _TEXT
JSON = st.recursive(
    _ATOMS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner),
)


def test_the_documented_examples_run() -> None:
    assert doctest.testmod(canonical) == (0, 1)


@given(JSON)
def test_a_value_survives_and_has_one_form(value: Any) -> None:
    content = canonical_json(value)
    assert parse_canonical(content, "x") == value
    assert canonical_json(json.loads(content)) == content


@given(st.dictionaries(_TEXT, st.integers(), min_size=2), st.randoms())
def test_the_order_of_keys_does_not_matter(value: dict[str, int], random: Any) -> None:
    keys = list(value)
    random.shuffle(keys)
    assert digest_of({key: value[key] for key in keys}) == digest_of(value)


def test_the_digest_is_fixed() -> None:
    assert digest_of({}) == "ca3d163bab055381827226140568f3bef7eaac187cebd76878e0b63e9e442356"


_NAN, _INFINITY = float("nan"), float("inf")
NO_JSON = (_NAN, {"a": [_INFINITY]}, {1: 2}, [{"a": {None: 1}}], {1, 2}, b"x", "\ud800", object())


@pytest.mark.parametrize("value", NO_JSON)
def test_a_value_without_a_json_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="no canonical JSON form"):
        canonical_json(value)


@pytest.mark.parametrize(
    "content",
    [
        *(b'{"a":1}', b'{"a": 1}\n', b'{"a":1}\n\n', b'{"b":1,"a":1}\n', b'{"a":2,"a":1}\n'),
        *(b'{"a":1.00}\n', b'{"a":"\\u00e9"}\n', b'\xef\xbb\xbf{"a":1}\n', b'{"a":NaN}\n'),
        *(b'"\\ud800"\n', b"\xff\n", b"", b"[" * 100_000, b"1" * 5_000 + b"\n"),
    ],
)
def test_any_other_form_is_a_format_error(content: bytes) -> None:
    with pytest.raises(FormatError, match=r"^manifest\.json is"):
        parse_canonical(content, "manifest.json")
