"""The one loop over the packs of a shard."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.schemas import FormatError, read_manifest
from packprep.tokens.shard_packs import stored_packs
from tests.helpers.zoo import Zoo


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
