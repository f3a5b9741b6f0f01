import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from packprep.config.build_config import BuildConfig
from packprep.output import shard_writer
from packprep.output.hashing_file import HashingFile
from packprep.output.shard_folder import ShardFolder
from packprep.output.shard_writer import (
    ShardLayout,
    cut_shards,
    record_batch,
    shard_bytes,
    write_shard,
)
from packprep.schemas import FormatError
from packprep.schemas.storage.places import Directory
from packprep.windows.placement import Packs
from packprep.windows.planner import plan_window
from tests.helpers.documents import make_documents, tokenizer


def packed(texts: list[int], **options: Any) -> tuple[Packs, ShardLayout]:
    config = BuildConfig(**{"max_length": 8, "order": "input", **options})
    policy = tokenizer(bos=False, eos=False)
    plan = plan_window(make_documents(texts, policy), policy, config, seed=0)
    return plan.packs, ShardLayout.from_config(config, policy)


def test_a_batch_holds_the_columns_of_the_format() -> None:
    packs, layout = packed([5, 6, 2, 3])
    rows = record_batch(packs, 0, 2, layout).to_pylist()
    assert record_batch(packs.take(np.array([1, 0])), 0, 2, layout).to_pylist() == rows[::-1]
    assert rows == [
        {
            "tokens": [10, 11, 12, 13, 14, 23, 24, 25],
            "position_ids": [0, 1, 2, 3, 4, 0, 1, 2],
            "cu_seqlens": [0, 5, 8],
            "document_ids": [0, 3],
            "document_starts": [0, 0],
        },
        {
            "tokens": [15, 16, 17, 18, 19, 20, 21, 22],
            "position_ids": [0, 1, 2, 3, 4, 5, 0, 1],
            "cu_seqlens": [0, 6, 8],
            "document_ids": [1, 2],
            "document_starts": [0, 0],
        },
    ]


def test_record_batches_never_change_what_a_shard_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packs, layout = packed(list(range(1, 9)) * 20)
    write_shard(
        ShardFolder(Directory(tmp_path)), "one.arrow", "train", packs, 0, len(packs), layout
    )
    monkeypatch.setattr(shard_writer, "BATCH_TOKENS", 20)
    write_shard(
        ShardFolder(Directory(tmp_path)), "many.arrow", "train", packs, 0, len(packs), layout
    )
    one, many = (
        pa.ipc.open_stream((tmp_path / f"{name}.arrow").read_bytes()).read_all()
        for name in ("one", "many")
    )
    assert one.equals(many)
    assert many["tokens"].num_chunks > one["tokens"].num_chunks == 1


def test_shards_are_cut_by_bytes_and_together_hold_every_pack() -> None:
    packs, layout = packed([8] * 10)
    size = int(shard_bytes(packs, layout)[0])
    assert cut_shards(packs, layout, 3 * size) == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert cut_shards(packs, layout, 1) == [(number, number + 1) for number in range(10)]


def test_a_token_outside_the_vocabulary_stops_the_shard_and_leaves_no_file_of_its_name(
    tmp_path: Path,
) -> None:
    packs, layout = packed([5])
    narrow = ShardLayout(columns=layout.columns, max_length=8, vocab_size=12, bos_id=0, pad_id=0)
    with pytest.raises(FormatError, match=r"a\.arrow pack 0 segment 0 token 2"):
        write_shard(ShardFolder(Directory(tmp_path)), "a.arrow", "train", packs, 0, 1, narrow)
    assert not (tmp_path / "a.arrow").exists()


def test_padding_and_filler_carry_no_loss() -> None:
    packs, layout = packed([3], pad_segment_to_multiple=4)
    [row] = record_batch(packs, 0, 1, layout).to_pylist()
    assert (row["tokens"], row["labels"]) == ([10, 11, 12, 3], [-100, 11, 12, -100])
    assert (row["cu_seqlens"], row["segment_lengths"]) == ([0, 4], [3])
    packs, layout = packed([3], packs_multiple_of=2, remainder="fill")
    _, row = record_batch(packs.filled(1), 0, 2, layout).to_pylist()
    assert (row["document_ids"], row["tokens"], row["labels"]) == ([-1], [3], [-100])


@pytest.mark.parametrize("size", [0, 4, 1 << 20, 1 << 60])
def test_room_taken_at_once_is_no_part_of_a_file_and_need_not_be_there(
    size: int, tmp_path: Path
) -> None:
    with ShardFolder(Directory(tmp_path)).writing("a", size) as file:
        file.write(b"12345")
    assert (tmp_path / "a").read_bytes() == b"12345"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "blocks",
    [[], [b"a"], [b"x"] * 250, [b"head", bytes(200_000), b"tail"], [b"", bytes(70_000)] * 20],
    ids=["nothing", "a byte", "many small", "a large one", "many large"],
)
def test_the_file_gets_the_bytes_and_the_digest_is_theirs(blocks: list[bytes]) -> None:
    raw = io.BytesIO()
    file = HashingFile(raw)
    for block in blocks:
        assert file.write(block) == len(block)
    content = b"".join(blocks)
    assert raw.getvalue() == content
    assert file.bytes == len(content)
    assert file.digest() == hashlib.sha256(content).hexdigest()
