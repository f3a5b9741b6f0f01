from pathlib import Path

import pytest

from packprep.exports.export import export
from packprep.exports.registry import EXPORT_FORMATS
from packprep.inspect.verify import verify
from tests.helpers.command import run
from tests.helpers.export_readers import READERS
from tests.helpers.tiny_shards import GOLDEN


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
    assert verdict.not_checked == [
        "packs, documents and the ledger: export.json has digests of files"
    ]


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
