"""schemas/README.md is the specification, and every later packprep reads the golden outputs.

Those of every format version are in tests/golden, byte for byte.
"""

import doctest
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from packprep.loaders import PackedShards
from packprep.schemas import (
    FORMAT_VERSION,
    STANDARD_COLUMNS,
    check_batch,
    check_files,
    check_ledger,
    read_manifest,
)
from tests.helpers.files import bytes_in
from tests.helpers.tiny_shards import EXAMPLE, GOLDEN, PLAIN, RICH, rich_row, to_batch, write_golden

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


# The digest of a manifest covers every file of its output. A new format version adds a line; no
# line ever changes.
DIGESTS = {
    "v1-example": "b61e5409ee56770b3e70fc951e0b0be600bdf5e0abfd6b6f329d6a28f00d371b",
    "v1-hf": "2400db606964463149cbdcc403f0f6fa20b00354cc477ea07f7a538e44584d4b",
    "v1-rich": "d906c2f89be2b0b356b6c2981e4d19101f3729103391a7b01c340d82a4074ea4",
    "v1-uint16": "1df4a960010d1cc373e787ea4eb026ce433bc06447228f7d2dcd133189035043",
}


@pytest.mark.parametrize("name", sorted({*DIGESTS} | {path.name for path in GOLDEN.iterdir()}))
def test_a_golden_output_is_as_it_was_written(name: str) -> None:
    manifest = read_manifest(GOLDEN / name)
    assert manifest.sha256 == DIGESTS[name]
    assert check_files(GOLDEN / name, manifest, "sha256") == []


def test_the_same_values_are_written_as_the_same_bytes_today(tmp_path: Path) -> None:
    write_golden(tmp_path)
    assert bytes_in(tmp_path) == bytes_in(GOLDEN)


def rows_of(name: str, split: str = "train") -> list[dict[str, Any]]:
    packs = PackedShards(GOLDEN / name, split=split, verify=True)
    return [{key: values.tolist() for key, values in pack.columns.items()} for pack in packs]


def test_the_example_is_read_with_the_same_values_whatever_its_names_and_types() -> None:
    assert rows_of("v1-example") == rows_of("v1-uint16") == EXAMPLE
    rows = rows_of("v1-hf")
    labels = [row.pop("labels") for row in rows]
    assert rows == EXAMPLE
    assert labels == [[-100, 20, 21, 22, 23, 24, 25, 26], [-100, 10, 2, -100, 2, -100, 30, 2]]
    narrow = PackedShards(GOLDEN / "v1-uint16")[0].columns.values()
    types = "uint16 uint16 int32 int64 int32"
    assert [str(values.dtype) for values in narrow] == types.split()


@pytest.mark.parametrize(("name", "split"), [("v1-example", "train"), ("v1-rich", "validation")])
def test_the_report_is_one_that_the_schema_allows(name: str, split: str) -> None:
    schema = json.loads((Path(__file__).parents[2] / "schemas" / "report.schema.json").read_text())
    jsonschema.validate(PackedShards(GOLDEN / name, split=split).report, schema)


def test_every_column_and_split_of_the_rich_output_is_read_with_its_values() -> None:
    train = [rich_row(0, 3, 4), rich_row(2, 1), rich_row(3, 4, 2), rich_row(5, 2)]
    assert rows_of("v1-rich") == train
    assert rows_of("v1-rich", "validation") == [rich_row(6, 5)]
