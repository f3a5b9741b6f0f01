"""Small files that hold, or claim to hold, gigabytes: read in bounded memory, or refused."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard

from tests.helpers.corpus import texts, write_jsonl

from .build import command_line, refused

ROOT = Path(__file__).parents[2]


def bomb(path: Path, megabytes: int, before: bytes = b"") -> Path:
    """A small compressed file that unpacks to `megabytes` of one line."""
    with path.open("wb") as file:
        gz = path.suffix == ".gz"
        with (
            gzip.GzipFile("", "wb", 1, file)
            if gz
            else zstandard.ZstdCompressor(1).stream_writer(file) as packed
        ):
            packed.write(before)
            for _ in range(megabytes):
                packed.write(b"x" * 1_000_000)
    return path


def peak_of(arguments: list[str], code: int) -> tuple[int, str]:
    """Bytes of memory a command held at most, and what it said."""
    measure = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], "
        "capture_output=True, text=True);"
        "print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, "
        "done.stderr)"
    )
    command = [sys.executable, "-c", measure, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    status, peak, said = done.stdout.split(" ", 2)
    assert int(status) == code, said
    return int(peak), said


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Bytes of memory of a build of next to nothing."""
    folder = tmp_path_factory.mktemp("usual")
    return peak_of([*command_line(folder, write_jsonl(folder / "good.jsonl", texts(40))), "-q"], 0)[
        0
    ]


BOMBS = {
    "a.jsonl.gz": (
        b'{"text": "a"}\n{"text": "',
        "row 1 (line 2): the line has more than 8,000,000 bytes",
    ),
    "a.json.zst": (
        b'[{"text": "a"}, {"text": "',
        "row 1: invalid JSON, or more than 8,000,000 bytes",
    ),
    "a.csv.zst": (b"text\na\n", "line 3: the row has more than 8,000,000 bytes"),
    "a.txt.zst": (
        b"a\n",
        "row 0: the document that starts on line 1 has more than 8,000,000 bytes",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_unpacks_to_one_endless_line_takes_no_more_memory_than_a_row(
    tmp_path: Path, name: str, usual: int
) -> None:
    before, sentence = BOMBS[name]
    path = bomb(tmp_path / name, 400, before)
    assert path.stat().st_size < 3_000_000
    peak, said = peak_of([*command_line(tmp_path, path), "--max-row-size", "8MB"], 2)
    assert sentence in said
    assert peak < usual + 150_000_000, (
        "of 400 MB, and the text of a row is in several hands at once"
    )
    assert not (tmp_path / "out").exists()


def test_a_binary_file_that_unpacks_without_end_stops_before_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packprep.sources.opening._UNPACKED_BYTES", 5_000_000)
    path = bomb(tmp_path / "a.parquet.zst", 50)
    assert (
        refused(tmp_path, path)
        == f"{path} unpacks to more than 5,000,000 bytes, more than any parquet file does"
    )


CLAIMS = {
    "zstd.arrow": "cannot be read as arrow: ",
    "lz4.arrow": "cannot be read as arrow: ",
    "metadata.arrow": "cannot be read as arrow: Expected to read 2147483647 metadata bytes, but",
    "footer.parquet": "cannot be read as parquet: Parquet file size is ",
    "window.txt.zst": "Frame requires too much memory for decoding; fetch the file again",
    "lists.json": "lists.json row 0: invalid JSON: nested too deeply; fix it",
    "objects.jsonl": "objects.jsonl row 0 (line 1): invalid JSON: nested too deeply; fix it",
    "nested.json.gz": "nested.json.gz row 0: invalid JSON: nested too deeply; fix it",
    "a.jsonl.bz2": "has no known format; expected .jsonl/",
    "a.jsonl.xz": "has no known format; expected .jsonl/",
    "frames.txt.zst": "holds no rows; expected at least one document",
    "members.txt.gz": "holds no rows; expected at least one document",
    "idx": "but 1,152,921,504,606,846,976 sequences and 4 ends of documents take",
    "npy": "it has 0 bytes of values, but 1,152,921,504,606,846,976 values of int64 take",
    "offsets.npy": "it has 0 bytes of values, but 1,152,921,504,606,846,976 values of int64",
    "ds.index": "end at token 4,611,686,018,427,387,904; expected 2 or 4 bytes for each token",
    "csv.gz": "it cannot be read as lines of start,end,...: CSV parse error",
    "lengths.npy": "cannot be read as an array: mmap length is greater than file size; expected a",
}


def test_a_file_that_claims_gigabytes_is_refused_before_they_are_allocated(
    tmp_path: Path, usual: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.bombs", tmp_path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    *lines, peak = done.stdout.splitlines()
    said = {name: (code, message) for name, code, message in map(json.loads, lines)}
    assert said.keys() == CLAIMS.keys()
    for name, (code, message) in said.items():
        assert code == 2, message
        assert CLAIMS[name] in message, name
        assert "Traceback" not in message
    assert int(peak) < usual + 250_000_000, "all of them in one process"
