import json
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from packprep.schemas.report import Report, report_fault

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_bytes())
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
    if "properties" in schema:
        table = {key: described(value) for key, value in schema["properties"].items()}
        return table, sorted(schema["required"])
    if schema["type"] == "object":
        return {"*": described(schema["additionalProperties"])}
    return schema["type"]


def typed(kind: Any) -> Any:
    """The same of a type."""
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        return {key: typed(value) for key, value in hints.items()}, sorted(kind.__required_keys__)
    if get_origin(kind) is list:
        return [typed(get_args(kind)[0])]
    if get_origin(kind) is dict:
        return {"*": typed(get_args(kind)[1])}
    return VALUES[kind]


def test_the_types_have_the_keys_of_the_schema_and_require_the_same() -> None:
    assert typed(Report) == described(SCHEMA)


GOLDEN = Path(__file__).parents[1] / "golden" / "v1-example" / "report.json"


_OTHER = "is of another type or out of range"
_PERCENTILES = {"documents_per_pack": {"p50": "1", "p95": 1, "max": 1}}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        *(({}, None), ({"a_later_key": "x"}, None)),
        *(({"packs": value}, f"packs {_OTHER}") for value in ("2", True, 1 << 63)),
        ({"bias": float("nan")}, f"bias {_OTHER}"),
        ({"splits": []}, "splits is no object"),
        ({"splits": {"train": {}}}, "splits.train has no packs"),
        ({"windows": {}}, "windows is no list"),
        ({"sources": [7]}, "sources[0] is no object"),
        (_PERCENTILES, f"documents_per_pack.p50 {_OTHER}"),
        ({"seconds": {}}, "seconds has no total"),
        ({"mix": None}, "mix is no object"),
    ],
)
def test_the_first_value_of_another_type_is_named(
    change: dict[str, Any], fault: str | None
) -> None:
    assert report_fault(json.loads(GOLDEN.read_bytes()) | change) == fault


def test_the_first_missing_value_is_named() -> None:
    report = json.loads(GOLDEN.read_bytes())
    del report["bias"]
    assert report_fault(report) == "it has no bias"
    assert report_fault([]) == "it is no object"
