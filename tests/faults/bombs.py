"""Files of kilobytes that claim to hold gigabytes, each read by a command.

`python -m tests.faults.bombs FOLDER` writes and reads them all in one process. It prints a line of
JSON for each, [name, exit code, message], and at last the bytes of memory that it held at most.
"""

import gzip
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from packprep.support.memory import peak
from tests.helpers.command import Result, run
from tests.helpers.corpus import save_tokenizer
from tests.helpers.token_files import write_datatrove, write_dolma, write_megatron, write_npy

_DOCUMENTS = [[1, 2, 3], [4, 5], [6]]
_SIZE = 100_100


def arrow_claiming(compression: Any, size: int) -> bytes:
    """An Arrow stream with a compressed text that claims to have another size."""
    table = pa.table({"text": ["a" * _SIZE]})
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    told, claimed = (number.to_bytes(8, "little") for number in (_SIZE, size))
    assert told in sink.getvalue()
    return sink.getvalue().replace(told, claimed)


def npy_claiming(shape: tuple[int, ...]) -> bytes:
    """A header of NumPy without values."""
    sink = io.BytesIO()
    header = {"descr": "<i8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(sink, header)
    return sink.getvalue()


def _files() -> dict[str, bytes]:
    parquet = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"] * 9}), parquet)
    footer = parquet.getvalue()[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1"
    window = b"\x28\xb5\x2f\xfd" + bytes([0b00000000, 21 << 3]) + b"\x01\0\0"
    return {
        "zstd.arrow": arrow_claiming("zstd", 1 << 40),
        "lz4.arrow": arrow_claiming("lz4", 1 << 33),
        "metadata.arrow": struct.pack("<Ii", 0xFFFFFFFF, 2**31 - 1) + bytes(64),
        "footer.parquet": footer,
        "window.txt.zst": window,
        "lists.json": b"[" * 1_000_000,
        "objects.jsonl": b'{"text": ' * 100_000 + b"\n",
        "nested.json.gz": gzip.compress(b'[{"text": ' + b"[" * 10_000_000),
        "a.jsonl.bz2": b"BZh9",
        "a.jsonl.xz": b"\xfd7zXZ\0",
        "frames.txt.zst": zstandard.compress(b"") * 20_000,
        "members.txt.gz": gzip.compress(b"") * 5_000,
    }


def _token_files(folder: Path) -> dict[str, Path]:
    index = write_megatron(folder / "megatron", _DOCUMENTS).with_suffix(".idx")
    index.write_bytes(
        index.read_bytes()[:18] + struct.pack("<Q", 1 << 60) + index.read_bytes()[26:]
    )
    values = write_npy(folder / "npy", _DOCUMENTS)
    values.write_bytes(npy_claiming((1 << 60,)))
    offsets = write_npy(folder / "offsets", _DOCUMENTS)
    offsets.with_name("x.offsets.npy").write_bytes(npy_claiming((1 << 60,)))
    ends = write_datatrove(folder / "datatrove", _DOCUMENTS)
    ends.with_name("x.ds.index").write_bytes(struct.pack("<3Q", 1, 1 << 40, 1 << 62))
    dolma = write_dolma(folder / "dolma", _DOCUMENTS)
    line = b"0," + b"9" * 50_000_000 + b"\n"
    dolma.with_name("x.csv.gz").write_bytes(gzip.compress(line, 1))
    files = {"idx": index.with_suffix(".bin"), "npy": values, "offsets.npy": offsets}
    return files | {"ds.index": ends, "csv.gz": dolma}


def _commands(folder: Path) -> dict[str, Callable[[], Result]]:
    tokenizer = save_tokenizer(folder / "tokenizer")
    options = ("--tokenizer", tokenizer, "--max-length", "64", "--max-row-size", "8MB", "-q")
    commands: dict[str, Callable[[], Result]] = {}

    def build(source: Path, *more: object) -> Callable[[], Result]:
        return lambda: run("build", source, "-o", folder / "out", *options, *more)

    for name, content in _files().items():
        (folder / name).write_bytes(content)
        commands[name] = build(folder / name)
    for name, path in _token_files(folder).items():
        commands[name] = build(path, "--input-ids-column", "ids")
    (folder / "lengths.npy").write_bytes(npy_claiming((1 << 50,)))
    commands["lengths.npy"] = lambda: run(
        "plan", folder / "lengths.npy", "--max-length", "64", "--strategy", "best_fit"
    )
    return commands


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Read every bomb, in files of FOLDER."""
    for name, command in _commands(folder).items():
        done = command()
        print(json.dumps([name, done.code, (done.err or done.out).replace(f"{folder}/", "")]))
    print(peak())


if __name__ == "__main__":
    main()
