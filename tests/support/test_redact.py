"""Words of errors: without secrets, and without those of Python."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.support.errors import ConfigError, InputError
from packprep.support.json_words import json_fault
from packprep.support.redact import redacted

# Made up, like all secrets here.
TOKEN = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz012345"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:password@host/a.jsonl", "https://***@host/a.jsonl"),
        ("https://user:pa/ss@wo:rd@host/a", "https://***@host/a"),
        ("s3://key:secret@bucket/a?X-Amz-Signature=abc&X-Amz-Date=1", "s3://***@bucket/a?***"),
        ("no 'https://h/a?b=c' here", "no 'https://h/a?***' here"),
        ("/a?X-Amz-Credential=abc&x=1", "/a?X-Amz-Credential=***&x=1"),
        (f"{TOKEN} is no dataset", "hf_*** is no dataset"),
        ("header Authorization: Bearer abcdefgh12345", "header Authorization: Bearer ***"),
        ("AKIA" + "ABCDEFGHIJKLMNOP", "AKIA***"),
        ("a\nb\x1b[2J\x85c", "a\\nb\\x1b[2J\\x85c"),
        # names that hold no secret stay as they are
        ("https://host/org/name@main/a.jsonl", "https://host/org/name@main/a.jsonl"),
        (
            "data/token=5/key=7.parquet row 3: it has 'hf_text'",
            "data/token=5/key=7.parquet row 3: it has 'hf_text'",
        ),
        ("C:\\data\\größe 東京.jsonl", "C:\\data\\größe 東京.jsonl"),
    ],
)
def test_credentials_are_taken_out_and_nothing_else(text: str, shown: str) -> None:
    assert redacted(text) == shown


SECRETS = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=20, max_size=30)


@given(
    SECRETS,
    st.sampled_from(["https", "s3", "hf", "gs+ssh"]),
    st.sampled_from(
        [
            "{s}://user:{x}@host/a",
            "{s}://{x}@host/a",
            "{s}://h/a?sig={x}",
            "{s}://h/a?b=1&{x}=2",
            "{s}://h/a#{x}",
            "a?api_key={x}",
            "a&access-token={x}",
            "Bearer {x}",
            "hf_{x}",
            "AKIA{x}",
        ]
    ),
    st.sampled_from(["", "no such file: ", "reading '", "("]),
)
def test_a_secret_is_never_shown_wherever_it_stands(
    secret: str, scheme: str, form: str, before: str
) -> None:
    assert secret not in redacted(before + form.format(s=scheme, x=secret) + " is not there")


@given(st.text())
def test_what_is_shown_is_one_line_and_stays_the_same(text: str) -> None:
    shown = redacted(text)
    assert len(shown.splitlines()) <= 1
    assert redacted(shown) == shown


@pytest.mark.parametrize("kind", [ConfigError, InputError])
def test_every_error_of_packprep_is_redacted(kind: type[ValueError]) -> None:
    assert str(kind("https://user:password@host is wrong")) == "https://***@host is wrong"


@pytest.mark.parametrize("part", ["r", "://", "aa://", "?key", "aa://a:", "Basic "])
def test_a_sentence_that_quotes_megabytes_is_short(part: str) -> None:
    sentence = str(InputError("a.jsonl row 7: " + part * (3_000_000 // len(part)) + "; fix it"))
    assert len(sentence) < 2000
    assert sentence.startswith("a.jsonl row 7: ")
    assert sentence.endswith("; fix it")


COMMA = "Illegal trailing comma before end of object in line 2, column 3"
COMMA_BEFORE_313 = (
    "Expecting property name enclosed in double quotes in line 2, column 4"  # Python 3.11 and 3.12
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 100_000, ["it is nested too deeply"]),
        (b'"\xff"', ["byte 1 is not UTF-8"]),
        (b'{"a":\n 1,}', [COMMA, COMMA_BEFORE_313]),
        (b"1" * 5_000, ["it has a number of too many digits"]),
    ],
)
def test_a_fault_is_said_without_words_of_python(text: bytes, words: list[str]) -> None:
    with pytest.raises((ValueError, RecursionError)) as fault:
        json.loads(text)
    assert isinstance(fault.value, ValueError | RecursionError)
    assert json_fault(fault.value) in words
