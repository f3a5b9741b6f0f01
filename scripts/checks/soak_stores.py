"""Builds of an output in a store that are killed, and what is left.

`PYTHONPATH=. python scripts/checks/soak_stores.py --seed 1 [--store NAME]`.

A server of a store, and between it and each build a tap that passes on what the build sends in
pieces of 4 kB and kills it at a piece chosen beforehand: before, in the middle of, or after it,
wherever that piece stands in an upload, a copy or a lock. After every kill readers see nothing or
the whole; then the same command ends with the bytes of a build that nobody disturbed, and nothing
is left beside it.
"""

import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from unittest import mock

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from soak import Failures

from packprep.schemas import FormatError, read_manifest
from packprep.schemas.storage import stores
from packprep.schemas.storage.stores import Store
from tests.faults import harness
from tests.faults.harness import Ended, forked
from tests.helpers.store_servers import SERVERS, StoreServer, Tap, running

BUCKET = "bucket"


class RemoteSoak(Failures):
    """A server, a tap, and builds of one corpus that differ in their output only."""

    def __init__(
        self, folder: Path, seed: int, server: StoreServer, tap: Tap, arguments: list[str]
    ) -> None:
        super().__init__(seed)
        self.folder, self.server, self.tap, self.arguments = folder, server, tap, arguments
        self.number = 0
        ended = forked([[*arguments, "-o", str(folder / "undisturbed")]], folder / "log")
        assert ended.code == 0, ended.err
        self.expected = read_manifest(folder / "undisturbed").data
        self.packs = sum(split["packs"] for split in self.expected["splits"].values())

    def build(self, url: str, at: int = 0, share: float = 0.5) -> Ended:
        pids: list[int] = []

        def strike() -> None:
            while not pids:
                time.sleep(0.001)
            os.kill(pids[0], signal.SIGKILL)

        self.tap.arm(at, share, strike)
        workers = str(self.random.randint(1, 2))
        work = ["--work-dir", str(self.folder / "work"), "--num-proc", workers]
        return forked([[*self.arguments, "-o", url, *work]], self.folder / "log", kill=pids.append)

    def measured(self, word: str) -> list[int]:
        """Of an undisturbed build, first pieces of the requests from one that sends this on."""
        ended = self.build(self.new())
        assert ended.code == 0, ended.err
        sends = [word in line and line.startswith(("PUT", "POST")) for _, line in self.tap.requests]
        return [piece for piece, _ in self.tap.requests][sends.index(True) :]

    def new(self) -> str:
        self.number += 1
        return f"{self.server.protocol}://{BUCKET}/{self.folder.name}/out-{self.number}"

    def kills(self, number: int) -> str:
        """SIGKILL at random pieces from the first shard that is sent on."""
        first, last = self.measured(".arrow")[0], self.tap.pieces
        landed = 0
        for _ in range(number * 5):
            if landed < number:
                landed += self.kill_at(self.random.randint(first, last))
        return f"{landed} SIGKILLs"

    def publishing(self, number: int) -> str:
        """SIGKILL at so many requests, spread evenly, from the first one that publishes on."""
        pieces = self.measured("publication.json")
        landed = sum(map(self.kill_at, pieces[:: max(1, len(pieces) // number)]))
        return f"{landed} SIGKILLs at requests that publish"

    def kill_at(self, piece: int) -> bool:
        """True if the build was not done before, as two threads may send in another order."""
        url, share = self.new(), self.random.choice([0.0, 0.5, 1.0])
        ended = self.build(url, piece, share)
        if ended.code != -9:
            if ended.code != 0:
                self.fail(f"{url}: exit code {ended.code}: {ended.err[-300:]}")
            return False
        before = [request for request in self.tap.requests if request[0] <= piece]
        at = max(before, default=(0, ""))[1]
        what = f"{url}, killed at piece {piece} with {share:.0%} of it sent, in {at}"
        self.check_readers(url, what, finished=False)
        self.check_resume(url, what)
        return True

    def check_resume(self, url: str, what: str) -> None:
        ended = self.build(url)
        if ended.code != 0:
            self.fail(f"{what}: resumed with exit code {ended.code}: {ended.err[-500:]}")
            return
        self.check_readers(url, what, finished=True)
        left = list(Store(f"{url}.incomplete").list())
        here = [path.name for path in (self.folder / "work").iterdir()]
        # The other stores delete unfinished uploads after a week.
        files = self.server.file_system()
        uploads = files.list_multipart_uploads(BUCKET) if self.server.is_s3 else []
        if left or here or uploads:
            self.fail(f"{what}: {left}, {here} and {uploads} are left")

    def check_readers(self, url: str, what: str, *, finished: bool) -> None:
        """Both readers find nothing, or what an undisturbed build has made."""
        from datasets import load_from_disk

        from packprep.loaders import PackedShards

        try:
            rows = load_from_disk(url).num_rows
            if (sum(rows.values()) if isinstance(rows, dict) else rows) != self.packs:
                self.fail(f"{what}: load_from_disk finds {rows} rows")
        except FileNotFoundError as error:
            begun = [name for name in ("state.json", "dataset_dict.json") if Store(url).find(name)]
            if finished or begun:
                self.fail(f"{what}: load_from_disk finds {begun}, and says {error}")
        names = list(self.expected["splits"])
        try:
            with tempfile.TemporaryDirectory() as cache:
                shards = [PackedShards(url, split=split, cache_dir=cache) for split in names]
                if sum(sum(1 for _ in split) for split in shards) != self.packs:
                    self.fail(f"{what}: PackedShards finds other packs")
                elif shards[0].manifest.data != self.expected:
                    self.fail(f"{what}: PackedShards finds another output")
                PackedShards(url, split=names[0], cache_dir=cache, verify=True)
        except FormatError as error:
            if finished or "does not exist" not in str(error):
                self.fail(f"{what}: PackedShards says {error}")


def large(folder: Path) -> list[str]:
    """Arguments of a build of rows of token ids whose shards are sent in several parts of 5 MB."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 1000, 5000, np.int32) for _ in range(400)]
    pq.write_table(pa.table({"ids": rows}), folder / "ids.parquet")
    options = "--input-ids-column ids --vocab-size 1000 --max-length 8192 --unit-size 1MB"
    sizes = "--window 8MB --shard-size 12MB -q"
    return ["build", str(folder / "ids.parquet"), *options.split(), *sizes.split()]


_option = partial(click.option, show_default=True)


@click.command(help=__doc__)
@_option("--seed", default=0)
@_option("--kills", default=20, help="SIGKILLs at random points of many small shards.")
@_option("--parts", default=20, help="The same of shards that are sent in parts.")
@_option("--publishing", default=0, help="SIGKILLs at requests that publish; 1000: at each one.")
@_option("--store", default="moto", type=click.Choice(list(SERVERS)))
def main(seed: int, kills: int, parts: int, publishing: int, store: str) -> None:
    harness.warm()
    server = SERVERS[store]

    stores._PART = 5 << 20
    start, failures = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as name, running(store) as environment:
        tap = Tap(environment)
        with mock.patch.dict(os.environ, tap.environment):
            server.file_system().mkdir(BUCKET)  # imports what a build needs, before it is forked
            for number, kind in ((kills, "small"), (parts, "large")):
                if not number:
                    continue
                folder = Path(name, kind)
                (folder / "work").mkdir(parents=True)
                arguments = large(folder) if kind == "large" else harness.corpus(folder)
                soak = RemoteSoak(folder, seed, server, tap, arguments)
                print(f"{kind} shards: {soak.kills(number)}", flush=True)
                if publishing and kind == "small":
                    print(f"{kind} shards: {soak.publishing(publishing)}", flush=True)
                failures += soak.failures
        tap.close()
    print(f"seed {seed}: {failures} failures in {time.monotonic() - start:,.0f} s")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(prog_name="scripts/checks/soak_stores.py")
