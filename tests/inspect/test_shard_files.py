"""Files are read once: digest, batches, the end of the stream, and any error on the way."""

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest

from packprep.inspect.shard_files import (
    Checked,
    opener,
    read_file,
    read_shard,
)

BATCH = pa.record_batch({"a": list(range(1000))})


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), BATCH.schema) as writer:
        for _ in range(3):
            writer.write_batch(BATCH)
    return tmp_path / "a.arrow"


def read(path: Path) -> tuple[Checked, list[pa.RecordBatch], int]:
    checked, batches, read_bytes = Checked(), list[pa.RecordBatch](), list[int]()
    read_shard(
        opener(path), path.name, checked, read_bytes.append, lambda schema: None, batches.append
    )
    return checked, batches, sum(read_bytes)


def findings(checked: Checked) -> list[str]:
    return [str(finding) for finding in checked.findings]


@pytest.mark.parametrize("kept", [-8, -100, 0, 5000, None])
def test_the_digest_is_that_of_the_whole_file_wherever_reading_stops(
    shard: Path, kept: int | None
) -> None:
    content = shard.read_bytes()
    changed = content[:kept] if kept is not None else content + b"more"
    shard.write_bytes(changed)
    checked, _, read_bytes = read(shard)
    assert checked.digest == hashlib.sha256(changed).hexdigest()
    assert checked.bytes == read_bytes == len(changed)
    assert len(findings(checked)) == 1, findings(checked)


def test_a_file_that_cannot_be_opened_is_a_finding(tmp_path: Path) -> None:
    as_file = Checked()
    read_file(opener(tmp_path), tmp_path.name, as_file, lambda _: None)
    for checked in (as_file, read(tmp_path)[0]):
        assert findings(checked) == [f"{tmp_path.name}: it cannot be read: Is a directory"]
        assert not checked.complete
