import json
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from packprep.schemas.report import Report

SCHEMA = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_bytes())
VALUES = {
    int: "integer",
    float: "number",
    str: "string",
    str | None: ["string", "null"],
    int | None: ["integer", "null"],
}


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
