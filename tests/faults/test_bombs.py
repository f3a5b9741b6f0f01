"""Small files that hold, or claim to hold, gigabytes: read in bounded memory, or refused.

`python -m tests.faults.test_bombs FOLDER NAME...` reads bombs in one process. It prints a line of
JSON for each: name, exit code, message, and the bytes of memory that it held at most so far.
"""

import gzip
import io
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from packprep.support.memory import peak
from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.token_files import write_datatrove, write_dolma, write_megatron, write_npy

from .build import refused
from .kinds import write_arrow, write_parquet

ROOT = Path(__file__).parents[2]
DOCUMENTS = [[1, 2, 3], [4, 5], [6]]


def arrow_claiming(compression: Any, size: int) -> bytes:
    """An Arrow stream with a compressed text that claims to have another size."""
    table, length = pa.table({"text": ["a" * 100_100]}), (100_100).to_bytes(8, "little")
    content = write_arrow(table, compression=compression)
    assert length in content
    return content.replace(length, size.to_bytes(8, "little"))


def npy_claiming(*shape: int) -> bytes:
    """A header of NumPy without values."""
    sink = io.BytesIO()
    header = {"descr": "<i8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(sink, header)
    return sink.getvalue()


def parquet_claiming(size: int) -> bytes:
    """A file with a footer of this size."""
    return write_parquet(pa.table({"text": ["a"]}))[:-8] + struct.pack("<I", size) + b"PAR1"


def packed(parts: Iterable[bytes], zst: bool) -> bytes:
    """A small compressed file of large content."""
    sink = io.BytesIO()
    stream: Any = zstandard.ZstdCompressor(1).stream_writer(sink, closefd=False)
    with stream if zst else gzip.GzipFile("", "wb", 1, sink) as file:
        for part in parts:
            file.write(part)
    return sink.getvalue()


def endless(before: bytes, *, zst: bool = True, megabytes: int = 400) -> bytes:
    return packed([before, *[b"x" * 1_000_000] * megabytes], zst)


_WINDOW = b"\x28\xb5\x2f\xfd" + bytes([0b00000000, 22 << 3]) + b"\x01\0\0"  # 4 GB
_DEEP, _NO_ROWS = "invalid JSON: nested too deeply; fix it", "holds no rows; expected at least one"
_NO_FORMAT, _VALUES = "has no known format; expected .jsonl/", "it has 0 bytes of values, but 1,15"
_LARGE = "more than 8,000,000 bytes"
_LINES, _ARRAY = b'{"text": "a"}\n{"text": "', b'[{"text": "a"}, {"text": "'
_NUMBERS = b'{"text": "a", "n": 1}\n{"text": "'
_CHATS = b'{"prompt": "a", "response": "b"}\n{"prompt": "'
# By name of the file: how to make it, and the words of its refusal.
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "a.jsonl.gz": (lambda: endless(_LINES, zst=False), f"row 1 (line 2): the line has {_LARGE}"),
    "first.jsonl.zst": (lambda: endless(b'{"text": "'), f"row 0 (line 1): the line has {_LARGE}"),
    "object.json.zst": (
        lambda: endless(b'{\n"text": "'),
        "row 0: invalid JSON: Expecting property",
    ),
    "chat.jsonl.zst": (lambda: endless(_CHATS), f"row 1 (line 2): the line has {_LARGE}"),
    "carry.jsonl.zst": (lambda: endless(_NUMBERS), f"row 1 (line 2): the line has {_LARGE}"),
    "ids.jsonl.zst": (lambda: endless(b'{"ids": [1]}\n{"ids": "'), f"the line has {_LARGE}"),
    "a.json.zst": (lambda: endless(_ARRAY), f"row 1: invalid JSON, or {_LARGE}"),
    "a.csv.zst": (lambda: endless(b"text\na\n"), f"line 3: the row has {_LARGE}"),
    "a.txt.zst": (lambda: endless(b"a\n"), f"document that starts on line 1 has {_LARGE}"),
    "zstd.arrow": (lambda: arrow_claiming("zstd", 1 << 40), "cannot be read as arrow: "),
    "lz4.arrow": (lambda: arrow_claiming("lz4", 1 << 33), "cannot be read as arrow: "),
    "metadata.arrow": (
        lambda: struct.pack("<Ii", 0xFFFFFFFF, 2**31 - 1) + bytes(64),
        "cannot be read as arrow: Expected to read 2147483647 metadata bytes, but",
    ),
    "footer.parquet": (lambda: parquet_claiming(2**31 - 1), "as parquet: Parquet file size is "),
    "window.txt.zst": (lambda: _WINDOW, "has a zstd window of more than "),
    "lists.json": (lambda: b"[" * 1_000_000, f"row 0: {_DEEP}"),
    "objects.jsonl": (lambda: b'{"text": ' * 100_000 + b"\n", f"row 0 (line 1): {_DEEP}"),
    "nested.json.gz": (lambda: gzip.compress(b'[{"text": ' + b"[" * 10_000_000), f"row 0: {_DEEP}"),
    "a.jsonl.bz2": (lambda: b"BZh9", _NO_FORMAT),
    "a.jsonl.xz": (lambda: b"\xfd7zXZ\0", _NO_FORMAT),
    "frames.txt.zst": (lambda: zstandard.compress(b"") * 20_000, _NO_ROWS),
    "members.txt.gz": (lambda: gzip.compress(b"") * 5_000, _NO_ROWS),
}


def megatron(folder: Path) -> Path:
    index = write_megatron(folder, DOCUMENTS).with_suffix(".idx")
    content = index.read_bytes()
    index.write_bytes(content[:18] + struct.pack("<Q", 1 << 60) + content[26:])
    return index.with_suffix(".bin")


def beside(write: Any, name: str, content: Callable[[], bytes]) -> Callable[[Path], Path]:
    """Token files of a tool, one of which has other content; its own name is ""."""

    def make(folder: Path) -> Path:
        path: Path = write(folder, DOCUMENTS)
        (path.with_name(name) if name else path).write_bytes(content())
        return path

    return make


OPTIONS = {
    "chat.jsonl.zst": ["--prompt-column", "prompt", "--response-column", "response"],
    "carry.jsonl.zst": ["--carry", "n"],
    "ids.jsonl.zst": ["--input-ids-column", "ids"],
}
TOKEN_FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "idx": (megatron, "but 1,152,921,504,606,846,976 sequences and 4 ends of documents take"),
    "npy": (beside(write_npy, "", lambda: npy_claiming(1 << 60)), _VALUES),
    "offsets": (beside(write_npy, "x.offsets.npy", lambda: npy_claiming(1 << 60)), _VALUES),
    "ds": (
        beside(write_datatrove, "x.ds.index", lambda: struct.pack("<3Q", 1, 1 << 40, 1 << 62)),
        "end at token 4,611,686,018,427,387,904; expected 2 or 4 bytes for each token",
    ),
    "csv": (
        beside(write_dolma, "x.csv.gz", lambda: gzip.compress(b"0," + b"9" * 50_000_000, 1)),
        "it cannot be read as lines of start,end,...: CSV parse error",
    ),
}
ARRAYS = {
    "lengths.npy": "cannot be read as an array: mmap length is greater than file size; expected a"
}
WORDS = {name: words for name, (_, words) in (FILES | TOKEN_FILES).items()} | ARRAYS


def read(name: str, folder: Path) -> Result:
    """Make a bomb and let a command read it."""
    if name == "lengths.npy":
        (folder / name).write_bytes(npy_claiming(1 << 50))
        return run("plan", folder / name, "--max-length", "64", "--strategy", "best_fit")
    tokenizer = save_tokenizer(folder / "tokenizer")
    options = ["--tokenizer", tokenizer, "--max-length", "64", "--max-row-size", "8MB", "-q"]
    options += OPTIONS.get(name, [])
    source = folder / name
    if name in TOKEN_FILES:
        source = TOKEN_FILES[name][0](folder / name)
        options += ["--input-ids-column", "ids"]
    elif name in FILES:
        source.write_bytes(FILES[name][0]())
        assert source.stat().st_size < 3_000_000
    else:
        write_jsonl(source, texts(40))
    return run("build", source, "-o", folder / f"{name}.out", *options)


def read_apart(folder: Path, *names: str) -> list[tuple[str, int, str, int]]:
    """Name, exit code, message, and bytes of memory at most until then, of files in one process."""
    command = [sys.executable, "-m", "tests.faults.test_bombs", str(folder), *names]
    lines = subprocess.check_output(command, text=True, cwd=ROOT).splitlines()
    return [(name, code, message, most) for name, code, message, most in map(json.loads, lines)]


FEW = ("lz4.arrow", "footer.parquet", "idx", "lengths.npy")


@pytest.mark.parametrize("names", [FEW, pytest.param([*WORDS], marks=pytest.mark.long)])
def test_a_file_of_gigabytes_is_refused_before_they_are_allocated(
    tmp_path: Path, names: Sequence[str]
) -> None:
    """All in one process. Of 400 MB in one line, the text of a row is in several hands at once."""
    usual, *found = read_apart(tmp_path, "good.jsonl", *names)
    assert usual[1] == 0
    assert [name for name, *_ in found] == [*names]
    for name, code, message, most in found:
        assert code == 2, message
        assert WORDS[name] in message
        assert "Traceback" not in message
        assert most < usual[-1] + 250_000_000, name
    assert [*tmp_path.glob("*.out")] == [tmp_path / "good.jsonl.out"]


def test_a_binary_file_that_unpacks_without_end_stops_before_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packprep.sources.opening._UNPACKED_BYTES", 5_000_000)
    (tmp_path / "a.parquet.zst").write_bytes(endless(b"", megabytes=50))
    sentence = refused(tmp_path, tmp_path / "a.parquet.zst")
    assert "unpacks to more than 5,000,000 bytes, more than any parquet file does" in sentence


def main(folder: Path, names: list[str]) -> None:
    for name in names:
        done = read(name, folder)
        message = (done.err or done.out).replace(f"{folder}/", "")
        print(json.dumps([name, done.code, message, peak()]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
