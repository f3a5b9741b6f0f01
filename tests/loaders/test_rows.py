"""Packs of other tools: rows in memory, and directories that were saved without a manifest."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.loaders import PackedBatch, PackedLoader, PackedShards, batch_from_rows, unpack
from packprep.schemas import FormatError
from packprep.schemas.boundaries import BoundaryKind
from tests.helpers.tiny_shards import ROWS, write_output

from .test_batches import lists

EOS, BOS, PAD = 2, 1, 0
IDS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=4)


def plain_positions(row: list[int], token: int, *, ends: bool) -> list[int]:
    """Positions that begin again after each token (ends) or at each, one token at a time."""
    positions: list[int] = []
    for place, value in enumerate(row):
        restarts = place and (row[place - 1] == token if ends else value == token)
        positions.append(0 if not place or restarts else positions[-1] + 1)
    return positions


def spelled(batch: PackedBatch) -> list[Any]:
    """Positions, labels, boundaries and lengths without padding."""
    arrays = (batch.position_ids, batch.labels, batch.cu_seqlens, batch.segment_lengths)
    return [None if each is None else each.tolist() for each in arrays]


@given(IDS, st.booleans())
def test_positions_of_rows_are_those_of_counting_token_by_token_and_give_the_boundaries(
    rows: list[list[int]], ends: bool
) -> None:
    kind: BoundaryKind = "eos" if ends else "bos"
    batch = batch_from_rows([{"input_ids": row} for row in rows], boundaries=kind, token=EOS)
    positions = [plain_positions(row, EOS, ends=ends) for row in rows]
    assert batch.position_ids.tolist() == [place for row in positions for place in row]
    assert batch.labels[batch.cu_seqlens[:-1]].tolist() == [-100] * batch.num_segments
    pairs = zip(rows, positions, strict=True)
    positioned = [{"input_ids": row, "position_ids": places} for row, places in pairs]
    assert spelled(batch_from_rows(positioned, boundaries="positions")) == spelled(batch)


BY_EOS = {"boundaries": "eos", "token": EOS}
PADDED = [{"input_ids": [5, 6, EOS, PAD, PAD]}, {"input_ids": [5, PAD, 7, PAD]}]
MASKED = {"input_ids": [BOS, 5, BOS, 6, 9], "attention_mask": [1, 1, 2, 2, 0], "labels": [7] * 5}
NONE = -100


@pytest.mark.parametrize(
    ("rows", "options", "expected"),
    [
        (
            PADDED,
            BY_EOS | {"pad_token": PAD},
            [
                [0, 1, 2, 0, 1, 0, 1, 2, 3],
                [NONE, 6, EOS, NONE, NONE, NONE, PAD, 7, NONE],
                [0, 3, 5, 9],
                [3, 0, 3],
            ],
        ),
        (
            [{"input_ids": [5, 6, EOS, EOS, EOS]}],  # a document keeps its EOS
            BY_EOS | {"pad_token": EOS},
            [[0, 1, 2, 0, 0], [NONE, 6, EOS, NONE, NONE], [0, 3, 4, 5], [3, 0, 0]],
        ),
        (
            [MASKED],  # the row itself says what is padding
            {"boundaries": "bos", "token": BOS},
            [[0, 1, 0, 1, 2], [NONE, 7, NONE, 7, NONE], [0, 2, 5], [2, 2]],
        ),
    ],
)
def test_padding_has_no_loss_and_no_length(rows: Any, options: Any, expected: Any) -> None:
    batch = batch_from_rows(rows, **options)
    assert spelled(batch) == expected
    assert batch.num_real_tokens == sum(expected[-1])


TWO = {"tokens": [1, 2]}
PLACED = TWO | {"position_ids": [0, 1]}
POSITIONS = {"boundaries": "positions"}


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ({"tokens": [1, 2], "cu_seqlens": [0, 1]}, {}, r"row 0 of .*: cu_seqlens are \[0, 1\]"),
        ({"labels": [1]}, {}, "columns labels; expected tokens .*remove_unused_columns=False"),
        ({"tokens": [1]}, {}, "columns tokens; expected cu_seqlens or seq_lengths among them"),
        (TWO | {"cu_seqlens": [0, 2], "labels": [1]}, {}, "have 1 labels for 2 tokens"),
        (TWO, POSITIONS, "row 0 .* has the columns tokens; expected position_ids among them"),
        (TWO | {"position_ids": [0]}, POSITIONS, "row 0 .* has 1 position_ids for 2 tokens"),
        (TWO | {"position_ids": [0, 4]}, POSITIONS, "row 0 .* has position 4 at token 1, where"),
        (PLACED | {"attention_mask": [0, 1]}, POSITIONS, "row 0 .* of 2 values, 1 of them not 0"),
    ],
)
def test_rows_that_do_not_fit_are_a_sentence(row: Any, options: Any, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        batch_from_rows([row], **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"boundaries": "eod"}, "'eod'; expected one of eos, bos, positions"),
        ({"boundaries": "eos"}, "'eos' and token is None; pass the id of EOS"),
        ({"boundaries": "bos"}, "'bos' and token is None; pass the id of BOS"),
        (POSITIONS | {"token": 2}, "token is 2; positions need no token"),
        ({"token": 2}, "token is 2 and pad_token is None without boundaries; pass boundaries="),
    ],
)
def test_wrong_arguments_are_a_sentence(options: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        batch_from_rows([PLACED], **options)


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
    first = next(shards[0].segments())
    assert (first.document_id, first.start, first.tokens.tolist()) == (None, None, [0, 0, 0])
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


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
def test_tokens_keep_their_type_and_boundaries_of_a_plain_dataset_have_ours(
    tmp_path: Path, kind: Any
) -> None:
    columns = {"tokens": kind(pa.uint16()), "cu_seqlens": kind(pa.int64())}
    arrays = {name: pa.array([row[name] for row in ROWS], type_) for name, type_ in columns.items()}
    for pack, row in zip(
        PackedShards(save_plain(tmp_path / "plain", pa.table(arrays))), ROWS, strict=True
    ):
        assert (pack.tokens.dtype.name, pack.cu_seqlens.dtype.name) == ("uint16", "int32")
        assert [pack.tokens.tolist(), pack.cu_seqlens.tolist()] == [row[name] for name in columns]


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
