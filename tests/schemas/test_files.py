"""The files of an output: written whole, and found if they are missing, changed or surplus."""

import shutil
from pathlib import Path

import pytest

from packprep.schemas import FormatError, check_files, read_manifest
from packprep.schemas.files import check_path, inside, shard_name
from packprep.schemas.listed import check_file
from packprep.schemas.storage.writing import (
    temporary_name,
    write_dataset_dict,
    write_dataset_files,
    write_file,
)
from tests.helpers.tiny_shards import EXAMPLE, write_output


@pytest.fixture
def out(tmp_path: Path) -> Path:
    write_output(tmp_path / "out", {"train": [EXAMPLE], "validation": [EXAMPLE]})
    return tmp_path / "out"


def findings(out: Path) -> list[str]:
    """Findings of the full check, paths shortened.

    The size check must say the same unless only bytes differ.
    """
    manifest = read_manifest(out)
    full = check_files(out, manifest, "sha256")
    assert check_files(out, manifest) == [finding for finding in full if "sha256" not in finding]
    return [finding.replace(f"{out}/", "") for finding in full]


def test_surplus_files_and_links_are_found_wherever_they_are(out: Path) -> None:
    (out / "train" / "cache.arrow").touch()
    (out / "deep" / "er").mkdir(parents=True)
    (out / "deep" / "er" / "x").touch()
    (out / "link").symlink_to(out / "train")
    (out / "dangling").symlink_to("nowhere")
    assert findings(out) == [
        f"{path} is not in the manifest; expected nothing else in the directory"
        for path in ("dangling", "link", "deep/er/x", "train/cache.arrow")
    ]


def test_a_link_out_of_the_directory_is_not_followed(tmp_path: Path, out: Path) -> None:
    shard = out / "train" / shard_name(0, 1)
    shutil.move(shard, tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    (finding,) = findings(out)
    assert "names the file 'train/data-00000-of-00001.arrow', which is a link out of " in finding
    shutil.move(out / "train", tmp_path / "folder")
    (out / "train").symlink_to(tmp_path / "folder")
    with pytest.raises(FormatError, match="link out of"):
        inside(out, "train/state.json")


def test_links_in_a_circle_are_refused(out: Path) -> None:
    (out / "a").symlink_to("b")
    (out / "b").symlink_to("a")
    with pytest.raises(FormatError, match="names the file 'a'"):
        inside(out, "a")


def test_a_link_within_the_directory_and_a_link_to_it_are_fine(tmp_path: Path, out: Path) -> None:
    (tmp_path / "alias").symlink_to(out)
    assert check_files(tmp_path / "alias", read_manifest(tmp_path / "alias"), "sha256") == []
    shard = out / "train" / shard_name(0, 1)
    shard.unlink()
    shard.symlink_to(Path("..", "validation", shard_name(0, 1)))
    assert findings(out) == []


def test_an_unknown_level_is_a_usage_error(out: Path) -> None:
    manifest = read_manifest(out)
    with pytest.raises(ValueError, match="level is 'deep'; expected one of size, sha256"):
        check_file(out, manifest.all_files[0], "deep")  # type: ignore[arg-type]


def test_a_name_too_long_for_any_file_system_is_refused_without_reading_the_disk() -> None:
    with pytest.raises(FormatError, match="a relative path inside its directory") as raised:
        check_path("x" * 5000 + "/data.arrow")
    assert len(str(raised.value)) < 400


def test_a_dataset_that_could_not_be_opened_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="has no shards"):
        write_dataset_files(tmp_path, [], fingerprint="0", split=None)
    with pytest.raises(
        FormatError, match="names the file 'a/b'; expected a name in the same directory"
    ):
        write_dataset_files(tmp_path, ["a/b"], fingerprint="0", split=None)
    with pytest.raises(FormatError, match="fingerprint is 'XY'"):
        write_dataset_files(tmp_path, ["a"], fingerprint="XY", split=None)
    for split in ("", "a/b", "..", "a b"):
        with pytest.raises(FormatError, match="names the split"):
            write_dataset_files(tmp_path, ["a"], fingerprint="0", split=split)
        with pytest.raises(FormatError, match="names the split"):
            write_dataset_dict(tmp_path, [split])
    assert [*tmp_path.iterdir()] == []


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"old")
    temporary_name(tmp_path / "a").mkdir()  # so the temporary file cannot be opened
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    temporary_name(tmp_path / "a").rmdir()
    write_file(tmp_path / "a", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"new")]
