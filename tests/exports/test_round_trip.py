import hashlib
import json
from pathlib import Path

import pytest

from tests.helpers.command import run
from tests.helpers.export_readers import stored_packs


def digest(output: Path) -> str:
    (shard,) = output.glob("*.arrow")
    return hashlib.sha256(shard.read_bytes()).hexdigest()


@pytest.mark.parametrize(("to", "name"), [("megatron", "train.bin"), ("npy", "train.npy")])
def test_a_build_of_an_export_gives_the_packs_of_a_build_of_its_documents(
    to: str, name: str, tmp_path: Path
) -> None:
    documents = [[number % 31 + 1] * (1 + number * 7 % 13) for number in range(60)]
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in documents))
    options = ["--vocab-size", 64, "--max-length", 16, "--quiet"]
    first = run("build", rows, "-o", tmp_path / "first", "--input-ids-column", "ids", *options)
    assert first.code == 0, first.err
    assert run("export", tmp_path / "first", "--to", to, "-o", tmp_path / "out").code == 0
    back = run("build", tmp_path / "out" / name, "-o", tmp_path / "back", *options)
    assert back.code == 0, back.err
    # The same documents, in the order of the packs.
    packs = stored_packs(tmp_path / "first", "train")
    segments = [
        pack.tokens[begin:end]
        for pack in packs
        for begin, end in zip(pack.cu_seqlens, pack.cu_seqlens[1:], strict=False)
    ]
    assert sorted(segments) == sorted(documents)
    again = tmp_path / "again.jsonl"
    again.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in segments))
    run("build", again, "-o", tmp_path / "again", "--input-ids-column", "ids", *options)
    assert digest(tmp_path / "back") == digest(tmp_path / "again")
    folder = [tmp_path / "out", "-o", tmp_path / "folder", "--input-ids-column", "input_ids"]
    assert run("build", *folder, *options).code == 0
    assert digest(tmp_path / "folder") == digest(tmp_path / "again")
