from pathlib import Path
from typing import Any

import pytest

from packprep.config.build_config import BuildConfig
from packprep.output.hashed_file import HashedFile, LateSha256
from packprep.output.shard_writer import ShardLayout, cut_shards, shard_bytes, write_shard
from packprep.schemas import FormatError
from packprep.schemas.storage.places import Directory
from packprep.windows.placement import Packs
from packprep.windows.planner import plan_window
from tests.helpers.documents import make_documents, tokenizer


def packed(texts: list[int], **options: Any) -> tuple[Packs, ShardLayout]:
    config = BuildConfig(**{"max_length": 8, "order": "input", **options})
    policy = tokenizer(bos=False, eos=False)
    plan = plan_window(make_documents(texts, policy), policy, config.pack_rules(), seed=0)
    return plan.packs, ShardLayout.of(config.pack_rules(), config.writing, policy)


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
        write_shard(Directory(tmp_path), "a.arrow", "train", packs, 0, 1, narrow)
    assert not (tmp_path / "a.arrow").exists()


@pytest.mark.parametrize("size", [0, 4, 1 << 20, 1 << 60])
def test_room_taken_at_once_is_no_part_of_a_file_and_need_not_be_there(
    size: int, tmp_path: Path
) -> None:
    with Directory(tmp_path).writing("a") as file:
        HashedFile(file, LateSha256(), room=size).write(b"12345")
    assert (tmp_path / "a").read_bytes() == b"12345"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
