"""The files of an output: what datasets opens, and what is missing, changed or surplus."""

import shutil
from pathlib import Path

import datasets
import pytest

from packprep.schemas import FormatError, check_files, read_manifest
from packprep.schemas.files import check_path, inside, shard_name
from packprep.schemas.listed import check_file
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


def test_datasets_opens_an_output_and_a_dict_of_two(tmp_path: Path, out: Path) -> None:
    write_output(tmp_path / "one", {"train": [EXAMPLE[:1], EXAMPLE[1:]]})
    one, two = (datasets.load_from_disk(place) for place in (tmp_path / "one", out))
    assert isinstance(one, datasets.Dataset)
    assert [dict(row) for row in one] == EXAMPLE
    assert str(one.split) == "train"
    assert isinstance(two, datasets.DatasetDict)
    assert {split: [dict(row) for row in rows] for split, rows in two.items()} == dict.fromkeys(
        ("train", "validation"), EXAMPLE
    )
    assert findings(out) == []


def test_a_missing_file_a_folder_in_its_place_and_another_size_are_found(out: Path) -> None:
    size = (out / "report.json").stat().st_size
    (out / "report.json").unlink()
    (out / "train" / "state.json").unlink()
    (out / "train" / "state.json").mkdir()
    with (out / "validation" / shard_name(0, 1)).open("ab") as file:
        file.write(b"\0")
    assert findings(out) == [
        "train/state.json is not a file; the manifest lists it with 201 bytes",
        "validation/data-00000-of-00001.arrow has 1457 bytes; expected 1456",
        f"report.json is missing; the manifest lists it with {size} bytes",
    ]


def test_one_flipped_bit_in_any_file_is_found(out: Path) -> None:
    for entry in read_manifest(out).all_files:
        content = (out / entry.path).read_bytes()
        (out / entry.path).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        (finding,) = findings(out)
        assert finding.startswith(f"{entry.path} has sha256 ")
        (out / entry.path).write_bytes(content)


def test_two_swapped_shards_are_found(tmp_path: Path) -> None:
    write_output(tmp_path / "out", {"train": [EXAMPLE[:1], EXAMPLE[1:]]})
    first, second = (tmp_path / "out" / shard_name(number, 2) for number in range(2))
    first.rename(tmp_path / "kept")
    second.rename(first)
    (tmp_path / "kept").rename(second)
    assert len(check_files(tmp_path / "out", read_manifest(tmp_path / "out"), "sha256")) == 2


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
