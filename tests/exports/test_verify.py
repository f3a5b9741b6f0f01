import shutil
from pathlib import Path

import pytest

from packprep.exports.export import export
from packprep.exports.registry import EXPORT_FORMATS
from packprep.inspect.verify import verify
from tests.helpers.command import run
from tests.helpers.export_readers import READERS
from tests.helpers.tiny_shards import GOLDEN, RICH, rich_row, write_output


def exported(to: str, tmp_path: Path) -> Path:
    source = GOLDEN / ("v1-example" if to == "megatron" else "v1-rich")
    export(source, str(tmp_path / "out"), to)
    return tmp_path / "out"


def findings(out: Path) -> list[str]:
    return [str(finding) for finding in verify(out).findings]


@pytest.mark.parametrize("to", sorted(READERS))
def test_every_export_is_sound_and_counted(to: str, tmp_path: Path) -> None:
    verdict = verify(exported(to, tmp_path))
    assert verdict.sound
    assert verdict.packs == (2 if to == "megatron" else 5)
    assert verdict.not_checked[0].startswith("documents, BOS, EOS and the ledger: an export")


@pytest.mark.parametrize("to", sorted(READERS))
def test_a_changed_a_missing_and_a_surplus_file_are_named(to: str, tmp_path: Path) -> None:
    out = exported(to, tmp_path)
    files = sorted(path for path in out.rglob("*") if path.is_file() and path.name != "export.json")
    changed, missing = files[-1], files[0]
    content = bytearray(changed.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)
    if missing != changed:
        missing.unlink()
    (out / "train-notes").write_text("mine")
    found = findings(out)
    name = changed.relative_to(out).as_posix()
    assert any(line.startswith(f"{name}: it has xxh3_128 ") for line in found)
    if missing != changed:
        name = missing.relative_to(out).as_posix()
        assert any(
            line.startswith(f"{name}: it is missing; export.json lists it") for line in found
        )
    assert "train-notes: it is not in export.json; expected nothing else in the directory" in found


def test_a_damaged_export_json_is_a_finding(tmp_path: Path) -> None:
    out = exported("npy", tmp_path)
    content = (out / "export.json").read_bytes()
    (out / "export.json").write_bytes(content.replace(b'"format":"npy"', b'"format":"nPy"'))
    assert any("does not have the sha256 that it names" in line for line in findings(out))


@pytest.mark.parametrize("to", sorted(EXPORT_FORMATS))
def test_any_damage_of_any_file_is_a_finding_and_not_an_error(to: str, tmp_path: Path) -> None:
    out = exported(to, tmp_path)
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        right = path.read_bytes()
        for wrong in (b"", b"{", right[: len(right) // 2], _flipped(right, 2), _flipped(right, 99)):
            path.write_bytes(wrong)
            assert run("verify", out, "-q").code == 1, (path, wrong[:40])
        path.write_bytes(right)
        if path.name != "export.json":  # without it nothing says that this is an export
            path.unlink()
            assert run("verify", out, "-q").code == 1, path
            path.write_bytes(right)
    assert run("verify", out, "-q").code == 0


def _flipped(content: bytes, place: int) -> bytes:
    place %= len(content)
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.fixture
def mds(tmp_path: Path) -> Path:
    """An MDS export of four packs with labels."""
    rows = [rich_row(0, 3, 4), rich_row(2, 1), rich_row(3, 4, 2), rich_row(5, 2)]
    write_output(tmp_path / "in", {"train": [rows]}, RICH, max_length=16)
    export(tmp_path / "in", str(tmp_path / "out"), "mds")
    return tmp_path / "out"


def test_a_wrong_number_of_samples_is_found(mds: Path) -> None:
    shard = mds / "train" / "shard.00000.mds"
    shard.write_bytes((3).to_bytes(4, "little") + shard.read_bytes()[4:])
    assert "train/shard.00000.mds: it has 3 samples; index.json says 4" in findings(mds)


@pytest.mark.parametrize("name", ["../outside.mds", "/etc/hostname", ""])
def test_an_index_names_shards_of_its_own_folder_only(mds: Path, name: str) -> None:
    index = mds / "train" / "index.json"
    shutil.copy(mds / "train" / "shard.00000.mds", mds / "outside.mds")
    index.write_text(index.read_text().replace("shard.00000.mds", name))
    assert any(
        f"train/index.json names the file {name!r}; expected a relative path" in line
        for line in findings(mds)
    )


def test_falling_offsets_are_found(mds: Path) -> None:
    shard = mds / "train" / "shard.00000.mds"
    content = bytearray(shard.read_bytes())
    content[8:12] = bytes(4)
    shard.write_bytes(content)
    size = len(content)
    what = f"train/shard.00000.mds: offsets of samples fall, or do not end at {size}"
    assert what in findings(mds)


def test_faults_in_mds_samples_are_found_by_shard_and_pack(mds: Path) -> None:
    shard = mds / "train" / "shard.00000.mds"
    content = bytearray(shard.read_bytes())
    offsets = [int.from_bytes(content[place : place + 4], "little") for place in range(4, 24, 4)]
    first, second, third, _, end = offsets
    content[first + 14] = 7  # cu_seqlens [7, ...]: 12 bytes of sizes, 2 of the shape
    content[second : second + 4] = (1).to_bytes(4, "little")  # the size of cu_seqlens
    content[third + 12] = 2 << 2  # two axes
    content[end - 1] = 0xFF  # the last id, of the last sample
    shard.write_bytes(content)
    place = "train/shard.00000.mds pack"
    sample = "it is no sample of cu_seqlens, labels, tokens:"
    found = [line for line in findings(mds) if "xxh3" not in line]
    assert len(found) == 4
    assert found[0] == f"{place} 0: cu_seqlens do not rise from 0 to its 12 tokens"
    assert found[1].startswith(f"{place} 1: {sample} it has ")
    assert found[2] == f"{place} 2: {sample} cu_seqlens has 2 axes; expected 1"
    assert found[3] == f"{place} 3: it has the id 65280; expected 0 to 31"
