"""Directories that another packer saved, without a manifest."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from packprep.loaders import PackedLoader, PackedShards, unpack
from packprep.schemas import FormatError
from tests.helpers.tiny_shards import ROWS, write_output

from .test_batches import lists


def save_plain(directory: Path, *tables: pa.Table, **state: Any) -> Path:
    """Save as save_to_disk does: Arrow streams a.arrow, ... and state.json, no manifest."""
    directory.mkdir()
    names = [f"{letter}.arrow" for letter, _ in zip("abc", tables, strict=False)]
    for name, table in zip(names, tables, strict=True):
        with pa.ipc.new_stream(str(directory / name), table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    content = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0"}
    (directory / "state.json").write_text(json.dumps(content | state))
    return directory


def test_a_dataset_that_trl_packed_is_read_as_packs(tmp_path: Path) -> None:
    lengths = [np.diff(row["cu_seqlens"]).tolist() for row in ROWS]
    table = pa.table({"input_ids": [row["tokens"] for row in ROWS], "seq_lengths": lengths})
    shards = PackedShards(save_plain(tmp_path / "trl", table))
    assert repr(shards) == f"PackedShards('{tmp_path / 'trl'}': 6 packs)"
    assert [pack.cu_seqlens.tolist() for pack in shards] == [row["cu_seqlens"] for row in ROWS]
    assert [pack.position_ids.tolist() for pack in shards] == [row["position_ids"] for row in ROWS]
    assert shards.max_length == 8
    got = [lists(batch) for batch in PackedLoader(shards, 2, shuffle=False)]
    write_output(tmp_path / "out", {"train": [ROWS]})
    stored = PackedLoader(PackedShards(tmp_path / "out"), 2, shuffle=False)
    expected = [lists(batch) for batch in stored]
    assert got == [
        {name: values for name, values in batch.items() if name != "document_ids"}
        for batch in expected
    ]
    assert PackedShards(tmp_path / "trl").fingerprint == shards.fingerprint
    assert pickle.loads(pickle.dumps(shards))[3].tokens.tolist() == ROWS[3]["tokens"]
    with pytest.raises(FormatError, match=r"has no manifest\.json; expected the output of"):
        shards.manifest  # noqa: B018
    refused: list[dict[str, Any]] = [{"split": "train"}, {"verify": True}]
    for options in refused:
        with pytest.raises(ValueError, match=r"has no splits|has no manifest to verify against"):
            PackedShards(tmp_path / "trl", **options)


def test_packs_of_a_plain_dataset_are_checked_and_have_the_same_columns(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [[1, 2], [3]], "seq_lengths": [[2], [2]]})
    shards = PackedShards(save_plain(tmp_path / "wrong", table))
    assert shards[0].tokens.tolist() == [1, 2]
    with pytest.raises(FormatError, match=r"pack 1: cu_seqlens are \[0, 2\]; expected 0, rising"):
        shards[1]
    packs = {"tokens": [[1, 2]], "cu_seqlens": [[0, 2]]}
    tables = pa.table(packs | {"document_ids": [[7]]}), pa.table(packs)
    directory = save_plain(tmp_path / "plain", *tables)
    with pytest.raises(FormatError, match=r"^b\.arrow and a\.arrow have different columns"):
        PackedShards(directory)


def test_padding_is_recognised_without_stored_document_ids(tmp_path: Path) -> None:
    table = pa.table({"input_ids": [[1, 2, 3], [4, 5]], "seq_lengths": [[2, 1], [2]]})
    shards = PackedShards(save_plain(tmp_path / "plain", table))
    (batch,) = PackedLoader(shards, 2, shuffle=False, pad_to=8)
    assert batch.segment_lengths.tolist() == [2, 1, 2, 0]
    assert batch.num_real_tokens == 5
    assert [each.tolist() for each in unpack(batch.tokens, batch)] == [[1, 2], [3], [4, 5]]
    filled: dict[str, Any] = {"world_size": 3, "remainder": "fill", "pad_multiple": 4}
    last, filler = (PackedLoader(shards, 1, rank=n, shuffle=False, **filled)[0] for n in (1, 2))
    assert last.segment_lengths.tolist() == [2, 0]
    assert (filler.segment_lengths.tolist(), filler.num_real_tokens) == ([0, 0], 0)
    assert filler.cu_seqlens.tolist() == [0, 1, 4]


@pytest.mark.parametrize("large", [False, True])
def test_a_plain_dataset_with_boundaries_is_read_whatever_its_integers(
    tmp_path: Path, large: bool
) -> None:
    def kind(value: pa.DataType) -> pa.DataType:
        return pa.large_list(value) if large else pa.list_(value)

    columns = {
        "tokens": pa.array([row["tokens"] for row in ROWS], kind(pa.uint16())),
        "cu_seqlens": pa.array([row["cu_seqlens"] for row in ROWS], kind(pa.int64())),
        "id": pa.array(range(len(ROWS))),
    }
    shards = PackedShards(save_plain(tmp_path / "plain", pa.table(columns)))
    for batch, row in zip(PackedLoader(shards, 1, shuffle=False), ROWS, strict=True):
        assert batch.tokens.tolist() == row["tokens"]
        assert batch.tokens.dtype == np.int64
        assert batch.cu_seqlens.tolist() == row["cu_seqlens"]
        assert batch.cu_seqlens.dtype == np.int32


ONE = {"tokens": [[1]], "cu_seqlens": [[0, 1]]}
TRL = {"input_ids": [[1]], "seq_lengths": [[1]]}


@pytest.mark.parametrize(
    ("columns", "state", "message"),
    [
        ({"text": ["a"]}, {}, "has the columns text; expected tokens and cu_seqlens, or input_ids"),
        (ONE | {"tokens": [[1.0]]}, {}, "column tokens is list<.*double>; expected a list of inte"),
        (TRL | {"completion_mask": [[1]]}, {}, "has completion_mask but no labels; save it with"),
        (ONE, {"_data_files": [{"filename": "../a.arrow"}]}, r"'\.\./a\.arrow'; expected a relati"),
        (ONE, {"_indices_data_files": [{"filename": "i.arrow"}]}, "with an indices mapping; call"),
    ],
)
def test_a_plain_dataset_without_packs_of_its_own_is_a_sentence(
    tmp_path: Path, columns: dict[str, Any], state: dict[str, Any], message: str
) -> None:
    with pytest.raises(FormatError, match=message):
        PackedShards(save_plain(tmp_path / "plain", pa.table(columns), **state))
