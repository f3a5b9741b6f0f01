"""`packprep export` to every format, against a plain copy of the shards.

\b
python scripts/bench/export.py [--tokens 64M] [--runs 3]

Documents of random ids (lengths as of web text, mean 500) are packed once, in packs of 4,096. Then
each format and a copy of the shards (read and written again in blocks of 4 MB) take turns in this
process. CPU seconds of the process, without imports; a row is the median. Bytes: of the export, a
token.
"""

import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tables
from common import measure

from packprep.exports.export import export
from packprep.exports.registry import EXPORT_FORMATS
from packprep.schemas.manifest import read_manifest

_BLOCK = 4 << 20
_COPY = "copy of the shards"


@click.command(help=__doc__)
@click.option("--tokens", default="64M", show_default=True, help="Tokens, such as 64M.")
@click.option("--runs", default=3, show_default=True)
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(tokens: str, runs: int, markdown: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = _packed(folder, int(float(tokens.removesuffix("M")) * 1e6))
        total = read_manifest(source).num_tokens
        works: dict[str, Callable[[Path], object]] = {
            name: lambda out, name=name: export(source, str(out), name)  # type: ignore[misc]
            for name in EXPORT_FORMATS
        }
        works[_COPY] = lambda out: _copy(source, out)
        seconds: defaultdict[str, list[float]] = defaultdict(list)
        sizes: dict[str, int] = {}
        for _ in range(runs):
            for name, work in works.items():
                out = folder / "out"
                start = time.process_time()
                work(out)
                seconds[name].append(time.process_time() - start)
                sizes[name] = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
                shutil.rmtree(out)
    copied = statistics.median(seconds[_COPY])
    rows = []
    for name in sorted(works, key=lambda name: statistics.median(seconds[name])):
        median = statistics.median(seconds[name])
        speed = f"{total / median / 1e6:,.0f}"
        rows.append([name, speed, f"{sizes[name] / total:.2f}", f"{copied / median:.2f}"])
    header = ["format", "M tokens/CPU s", "bytes/token", "speed of the copy"]
    click.echo(f"{total:,} tokens; median of {runs} runs")
    tables.show(header, rows, markdown)


def _packed(folder: Path, tokens: int) -> Path:
    """An output of random ids."""
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(5.8, 0.9, tokens // 450), 1, 4000).astype(np.int64)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens))]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = random.integers(0, 8000, offsets[-1], dtype=np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ids))
    pq.write_table(pa.table({"ids": lists}), folder / "ids.parquet")
    measure(["-m", "packprep", "sample", str(folder / "data")])
    build = ["build", str(folder / "ids.parquet"), "--input-ids-column", "ids"]
    build += ["-o", str(folder / "packed"), "--max-length", "4096", "--quiet"]
    measure(["-m", "packprep", *build, "--tokenizer", str(folder / "data" / "tokenizer")])
    return folder / "packed"


def _copy(source: Path, out: Path) -> None:
    out.mkdir()
    for shard in source.glob("*.arrow"):
        with shard.open("rb", 0) as file, (out / shard.name).open("wb", 0) as copy:
            while block := file.read(_BLOCK):
                copy.write(block)


if __name__ == "__main__":
    main()
