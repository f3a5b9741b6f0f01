"""The one reader: every module that reads packs of a finished output has them from it."""

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas import FormatError, read_manifest
from packprep.schemas.manifest import FileEntry
from packprep.schemas.storage.reader import Reader
from tests.helpers.zoo import Zoo
from tests.test_layers import modules, short

OPENERS = {"open_stream", "open_file", "read_record_batch", "MappedBatches", "SteadyBatches"}
OTHER_FILES = {  # token files, tables between processes, and sources that are Arrow files
    "schemas.index.token_file",
    "execute.worker",
    "sources.formats.arrow_rows",
}


def test_no_other_module_opens_a_shard() -> None:
    opening = {
        short(module)
        for module, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and OPENERS & {getattr(node.func, "attr", ""), getattr(node.func, "id", "")}
    }
    assert {name for name in opening if not name.startswith("schemas.storage.")} == OTHER_FILES


def read_all(reader: Reader, entry: FileEntry) -> list[Any]:
    return [batch.view for batch in reader.read(entry)]


@given(st.data())
def test_a_shard_that_was_cut_is_an_error_that_names_it(
    zoo: Zoo, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    output = zoo[data.draw(st.sampled_from(["text", "index"]))]
    manifest = read_manifest(output)
    entry = data.draw(st.sampled_from([file for file in manifest.files if file.is_shard]))
    content = (output / entry.path).read_bytes()
    cut = tmp_path_factory.mktemp("cut") / "shard"
    cut.write_bytes(content[: data.draw(st.integers(0, len(content) - 9))])  # 8: the end marker
    with pytest.raises(FormatError, match=entry.path):
        read_all(Reader(output, opened=lambda _: pa.memory_map(str(cut))), entry)


def test_other_columns_or_other_counts_are_an_error(zoo: Zoo) -> None:
    output = zoo["text"]
    entry = read_manifest(output).shards("train")[0]
    with pytest.raises(FormatError, match=f"{entry.path} has the columns"):
        read_all(Reader(output, read_manifest(zoo["pairs"])), entry)
    for name in ("packs", "tokens"):
        count = getattr(entry, name)
        wrong = replace(entry, **{name: count + 1})
        with pytest.raises(FormatError, match=f"has {count:,} {name}; the manifest says"):
            read_all(Reader(output, check="packs"), wrong)


def test_a_changed_byte_is_an_error_only_where_digests_are_compared(
    zoo: Zoo, tmp_path: Path
) -> None:
    output = zoo.copy("text", tmp_path)
    entry = read_manifest(output).shards("train")[0]
    content = bytearray((output / entry.path).read_bytes())
    tokens = next(Reader(output).read(entry)).view.columns["tokens"].tobytes()
    content[content.index(tokens)] ^= 1  # another id
    (output / entry.path).write_bytes(content)
    assert read_all(Reader(output, check="packs"), entry)
    reader = Reader(output, check="digests")
    for each in (*reader.ahead([entry]), entry):
        with pytest.raises(FormatError, match="has sha256"):
            read_all(reader, each)
