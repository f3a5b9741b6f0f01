"""Files are written whole, with the bytes that datasets needs."""

from pathlib import Path

import pytest

from packprep.schemas import FormatError
from packprep.schemas.files import shard_name
from packprep.schemas.storage.writing import (
    temporary_name,
    write_dataset_dict,
    write_dataset_files,
    write_file,
)


def test_the_files_datasets_reads_have_these_exact_bytes(tmp_path: Path) -> None:
    write_dataset_files(
        tmp_path, [shard_name(0, 2), shard_name(1, 2)], fingerprint="0123abcd", split="train"
    )
    write_dataset_dict(tmp_path, ["train", "validation"])
    assert (tmp_path / "state.json").read_bytes() == (
        b'{"_data_files":[{"filename":"data-00000-of-00002.arrow"},{"filename":"data-00001-of-00002.arrow"}],'
        b'"_fingerprint":"0123abcd","_format_columns":null,"_format_kwargs":{},"_format_type":null,'
        b'"_output_all_columns":false,"_split":"train"}\n'
    )
    assert (tmp_path / "dataset_info.json").read_bytes() == b"{}\n"
    assert (tmp_path / "dataset_dict.json").read_bytes() == b'{"splits":["train","validation"]}\n'
    assert len([*tmp_path.iterdir()]) == 3


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
