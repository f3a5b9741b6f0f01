"""A directory and a folder of a store are read and written alike."""

import hashlib
from pathlib import Path

import pytest

from packprep.schemas import FormatError, StoreError
from packprep.schemas.canonical import file_digest
from packprep.schemas.storage.places import Directory, Files, files_at


@pytest.fixture(params=["directory", "server"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    if request.param == "directory":
        return files_at(str(tmp_path / "folder"))
    return files_at(f"{request.getfixturevalue('bucket')}/folder")


def test_what_is_written_is_found_listed_and_read(files: Files) -> None:
    written = {"a": b"", "b/c": b"123", "b/d/e": bytes(3 << 20)}
    assert files.list() == {}
    for name, content in written.items():
        assert files.find(name) is None
        with pytest.raises(FileNotFoundError):
            files.read(name)
        with files.writing(name) as file:
            file.write(content)
    assert {name: stored.bytes for name, stored in files.list().items()} == {
        name: len(content) for name, content in written.items()
    }
    for name, content in written.items():
        assert files.read(name) == content
        assert files.find(name) == files.list()[name]
        with files.open(name) as opened:
            assert file_digest(opened) == hashlib.sha256(content).hexdigest()
            opened.seek(len(content) // 2)
            assert opened.read() == content[len(content) // 2 :]
        assert files.where(name).endswith(f"folder/{name}")
    assert files.find("b") is None  # a folder


def test_a_file_of_a_block_that_raises_never_appears(files: Files) -> None:
    def stop() -> None:
        with files.writing("a") as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        stop()
    assert files.find("a") is None


def test_a_place_is_itself_the_file_of_no_name(files: Files) -> None:
    with files.writing("a") as file:
        file.write(b"123")
    one = files_at(files.where("a"))
    assert one.find("") == files.find("a")
    with one.open("") as opened:
        assert opened.read() == b"123"
    if one.directory is None:
        with pytest.raises(StoreError, match="it was replaced by another one"):
            one.open("", "another")


def test_a_link_out_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("1")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/a").symlink_to("../secret")
    with pytest.raises(FormatError, match="is a link out of"):
        Directory(tmp_path / "folder").find("a")
