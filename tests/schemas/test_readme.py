"""schemas/README.md is the specification: its tables and examples agree with the code."""

import doctest
import json
import re
from pathlib import Path
from typing import Any

import pytest

from packprep.loaders import PackedShards
from packprep.schemas import FORMAT_VERSION, STANDARD_COLUMNS, check_batch, check_ledger
from tests.helpers.tiny_shards import EXAMPLE, GOLDEN, PLAIN, RICH, to_batch

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "schemas" / "README.md").read_text()


def block(name: str) -> Any:
    """The JSON of the fenced block ```json NAME."""
    found = re.search(rf"^ *```json {name}\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)
    assert found, name
    return json.loads(found[1])


def test_the_python_in_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    results = doctest.testfile(str(ROOT / "schemas" / "README.md"), module_relative=False)
    assert results.attempted == 2
    assert results.failed == 0


def test_the_column_table_is_the_standard_columns() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| list&lt;(\w+)&gt; \| (.*) \|$", TEXT, re.MULTILINE)
    assert rows == [
        (column.name, column.kind, column.dtype, column.meaning)
        for column in STANDARD_COLUMNS.values()
    ]


def test_the_worked_example_keeps_the_rules_and_every_token_of_its_documents() -> None:
    documents, packs = block("documents"), block("packs")
    assert packs == EXAMPLE
    check_batch(to_batch(PLAIN, packs), PLAIN, max_length=8, vocab_size=32, where="README.md")
    shards = PackedShards(GOLDEN / "v1-example", verify=True)
    pieces = [segment for pack in shards for segment in pack.segments()]
    for number, document in enumerate(documents):
        of_document = [piece for piece in pieces if piece.document_id == number]
        own = sorted((piece.start, piece.tokens.tolist()) for piece in of_document)
        assert [token for _, tokens in own for token in tokens] == document


def test_the_continuation_example_repeats_bos_and_counts_own_tokens() -> None:
    bos, document = 1, block("documents")[1]
    first, later = block("continuation")
    assert first == {"tokens": document[:8], "document_starts": 0}
    assert later["tokens"] == [bos, *document[later["document_starts"] :]]


def test_the_padding_example_keeps_the_rules() -> None:
    columns = [column for column in RICH if column.name in STANDARD_COLUMNS]
    batch = to_batch(columns, [block("padding")])
    check_batch(batch, columns, max_length=12, vocab_size=32, where="README.md")


def test_the_version_and_the_law_of_the_ledger_equal_those_of_the_code() -> None:
    assert TEXT.startswith(f"# The packprep format, version {FORMAT_VERSION}\n")
    law = re.search(r"`(tokens_in .*? sum\(dropped\))`", TEXT)
    assert law
    values: dict[str, Any] = {"tokens_in": 9, "overlap": 2, "continuation_bos": 1, "filler": 3}
    values |= {"tokens_packed": 8, "truncated": 5, "dropped": {"too_short": 2}}
    names = {"sum": lambda table: sum(table.values()), "shared": 0}
    assert eval(law[1], names, values)  # the law is ours, not input
    check_ledger(values)


def test_every_key_of_the_manifest_is_explained() -> None:
    schema = json.loads((ROOT / "schemas" / "manifest.schema.json").read_text())
    data = schema["properties"]["data"]["properties"]
    for key in [*schema["properties"], *data, *data["inputs"]["properties"]]:
        assert f"`{key}`" in TEXT, key
