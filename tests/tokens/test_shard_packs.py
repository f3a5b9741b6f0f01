"""The one loop over the packs of a shard."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas import FormatError, read_manifest
from packprep.tokens.index_shards import as_packs
from packprep.tokens.shard_packs import stored_packs
from tests.helpers.zoo import NAMES, Zoo


@pytest.mark.parametrize("name", NAMES)
def test_every_shard_gives_its_packs_by_number(zoo: Zoo, name: str) -> None:
    output = zoo[name]
    manifest, packs = read_manifest(output), as_packs(output, read_manifest(output))
    for entry in (file for file in manifest.files if file.is_shard):
        batches = list(stored_packs(output / entry.path, manifest, entry, entry.path, packs))
        firsts = [first for first, _ in batches]
        assert firsts == [sum(len(b) for _, b in batches[:n]) for n in range(len(batches))]
        assert sum(len(batch) for _, batch in batches) == entry.packs
        assert {*batches[0][1].schema.names} >= {
            "tokens" if manifest.names != "hf" else "input_ids"
        }


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
    with pytest.raises(FormatError, match="the shard "):
        list(stored_packs(cut, manifest, entry, "the shard"))


def test_other_columns_or_another_number_of_packs_are_an_error(zoo: Zoo) -> None:
    manifest, other = read_manifest(zoo["text"]), read_manifest(zoo["pairs"])
    entry = manifest.shards("train")[0]
    path: Path = zoo["text"] / entry.path
    with pytest.raises(FormatError, match="the shard has the columns"):
        list(stored_packs(path, other, entry, "the shard"))
    wrong = replace(entry, packs=int(entry.packs or 0) + 1)
    with pytest.raises(FormatError, match=f"has {entry.packs} packs; the manifest says"):
        list(stored_packs(path, manifest, wrong, "the shard"))
