"""Values of the format: canonical JSON, the ledger, findings, and the report."""

import doctest
import json
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.packing.figures import FIGURES
from packprep.schemas import Finding, Findings, FormatError, canonical, canonical_json, check_ledger
from packprep.schemas.canonical import parse_canonical
from packprep.schemas.findings import StopAtFirst
from packprep.schemas.form import form_fault
from packprep.schemas.ledger import LEDGER_KEYS
from packprep.schemas.report import Report

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


BALANCED: dict[str, Any] = {
    "tokens_in": 100,
    "overlap": 8,
    "continuation_bos": 2,
    "filler": 10,
    "tokens_packed": 90,
    "truncated": 20,
    "dropped": {"too_short": 7, "too_long": 3},
}


@given(st.sampled_from([*LEDGER_KEYS[:-1], "dropped.too_short"]), st.integers(1, 10**15))
def test_one_number_off_does_not_balance(key: str, by: int) -> None:
    wrong = {**BALANCED, "dropped": dict(BALANCED["dropped"])}
    table, name = (wrong["dropped"], "too_short") if "." in key else (wrong, key)
    table[name] += by
    with pytest.raises(FormatError, match=f"does not balance.*; {by} tokens are unaccounted for"):
        check_ledger(wrong)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({**BALANCED, "tokens_in": -1}, "tokens_in = -1; expected a count"),
        ({**BALANCED, "tokens_in": 100.0}, "tokens_in = 100.0; expected a count"),
        ({**BALANCED, "overlap": True}, "overlap = True; expected a count"),
        ({**BALANCED, "dropped": {"too_short": "7"}}, "dropped.too_short = '7'; expected a count"),
        ({**BALANCED, "dropped": 10}, "dropped = 10; expected an object"),
        ({**BALANCED, "lost": 0}, "expected an object with the keys tokens_in, "),
        ({}, "expected an object with the keys tokens_in, "),
        (None, "expected an object with the keys tokens_in, "),
    ],
)
def test_a_ledger_of_another_form_is_refused(wrong: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message.replace(".", r"\.")):
        check_ledger(wrong)


def finding(number: int) -> Finding:
    return Finding(kind="id", file="a.arrow", pack=number, what="it is wrong")


def test_a_finding_reads_as_its_place_and_what_is_wrong() -> None:
    whole = Finding(kind="id", file="a.arrow", pack=0, segment=2, token=5, what="x")
    assert str(whole) == "a.arrow pack 0 segment 2 token 5: x"
    assert str(Finding(kind="id", file="a.arrow", what="x")) == "a.arrow: x"
    assert str(Finding(kind="id", what="x")) == "x"


def test_all_are_counted_and_the_first_of_each_kind_kept_of_several_files_too() -> None:
    findings, later = Findings(keep=3), Findings(keep=3)
    made: list[int] = []

    def make(number: int) -> Finding:
        made.append(number)
        return finding(number)

    findings.many("id", np.arange(0), make)
    assert (len(findings), dict(findings.kept), list(findings)) == (0, {}, [])
    findings.many("id", np.arange(10, 12), make)
    later.many("id", np.arange(20, 1_000_020), make)
    later.many("id", np.arange(5), make)
    later.add(Finding(kind="other", what="x"))
    assert made == [10, 11, 20, 21, 22]
    findings.update(later)
    assert len(findings) == 1_000_008
    assert findings.counts == {"id": 1_000_007, "other": 1}
    assert [found.pack for found in findings] == [10, 11, 20, None]


def test_stop_at_first_raises_the_first_sentence() -> None:
    with pytest.raises(FormatError, match=r"^a\.arrow pack 4: it is wrong$"):
        StopAtFirst().many("id", np.array([4, 5]), finding)
    StopAtFirst().many("id", np.array([], np.int64), finding)
    with pytest.raises(FormatError, match="as it was"):
        StopAtFirst().damaged(FormatError("as it was"), "a.arrow")


def test_a_damaged_part_names_its_file_once() -> None:
    findings = Findings()
    findings.damaged(FormatError("a.arrow column tokens holds nulls"), "a.arrow", 3)
    assert [*map(str, findings)] == ["a.arrow pack 3: column tokens holds nulls"]


SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_bytes())
UNTYPED = {row.name for row in FIGURES if row.is_computed}
"""Figures that no type need name, since the table of figures does."""
VALUES: dict[Any, Any] = {int: "integer", float: "number", str: "string"}
VALUES |= {kind | None: [name, "null"] for kind, name in VALUES.items()}


def described(schema: Any) -> Any:
    """The keys, value types and required keys of a JSON Schema, without its limits."""
    if "$ref" in schema:
        return described(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if "const" in schema:
        return VALUES[type(schema["const"])]
    if schema["type"] == "array":
        return [described(schema["items"])]
    if named := schema.get("properties"):
        table = {key: (described(value), key in schema["required"]) for key, value in named.items()}
        counts = all(each == ("integer", True) for each in table.values())
        return {"*": "integer"} if counts else table
    if schema["type"] == "object":
        return {"*": described(schema["additionalProperties"])}
    return schema["type"]


def typed(kind: Any) -> Any:
    """The same of a type."""
    if is_typeddict(kind):
        hints = get_type_hints(kind).items()
        return {key: (typed(value), key in kind.__required_keys__) for key, value in hints}
    if get_origin(kind) is list:
        return [typed(get_args(kind)[0])]
    if get_origin(kind) is dict:
        return {"*": typed(get_args(kind)[1])}
    return VALUES[kind]


def test_the_types_have_the_keys_of_the_schema_and_require_the_same() -> None:
    def check(type_: Any, schema: Any) -> None:
        if isinstance(type_, dict):
            assert type_.keys() <= schema.keys() <= type_.keys() | UNTYPED
            for key, value in type_.items():
                check(value, schema[key])
        elif isinstance(type_, list | tuple):
            for one, other in zip(type_, schema, strict=True):
                check(one, other)
        else:
            assert type_ == schema

    check(typed(Report), described(SCHEMA))


GOLDEN = Path(__file__).parents[1] / "golden" / "v1-example" / "report.json"


_PERCENTILES = {"documents_per_pack": {"p50": "1", "p95": 1, "max": 1}}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        *(({}, None), ({"a_later_key": "x"}, None)),
        *(
            ({"packs": value}, f"packs is {value!r}, not a whole number from 0 to 2**63 - 1")
            for value in ("2", True, 1 << 63)
        ),
        ({"bias": float("nan")}, "bias is nan, not a number"),
        ({"splits": []}, "splits is [], not an object"),
        ({"splits": {"train": {}}}, "splits.train has no packs"),
        ({"windows": {}}, "windows is {}, not a list"),
        ({"sources": [7]}, "sources[0] is 7, not an object"),
        (_PERCENTILES, "documents_per_pack.p50 is '1', not a whole number from 0 to 2**63 - 1"),
        ({"seconds": {}}, "seconds has no total"),
        ({"mix": None}, "mix is None, not an object"),
    ],
)
def test_the_first_value_of_another_type_is_named(
    change: dict[str, Any], fault: str | None
) -> None:
    report = json.loads(GOLDEN.read_bytes())
    assert form_fault(report | change, "report", later_keys=True) == fault
    del report["bias"]
    assert form_fault(report, "report") == "it has no bias"
    assert form_fault([], "report") == "it is [], not an object"
