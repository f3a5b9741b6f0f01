import itertools
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from packprep.cli.main import COMMANDS
from packprep.loaders import LossLog, PackedLoader, PackedShards
from tests.helpers import warm
from tests.helpers.command import run
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.examples import long_but

_BUILD = "a.jsonl -o {} --tokenizer tok --max-length 64 --keep-tokens store"
_ARGUMENTS = {
    "build": _BUILD.format("built"),
    "plan": "a.jsonl --tokenizer tok --max-length 64,128",
    "report": "out -o page.html",
    "stats": "out",
    "check": "out --baseline baseline.json",
    "verify": "out",
    "equate": "out --micro-batch 2 --learning-rate 1e-5",
    "show": "out --pack 0",
    "spike": "losses out",
    "merge": "out index -o merged --materialize shards --names hf",
    "export": "out -o exported --to trl",
    "push": "out someone/name --dry-run",
    "tokenize": "a.jsonl -o of-tokenize --tokenizer tok",
    "pack": "store -o of-pack --max-length 64",
    "store": "ls store",
    "sample": "data",
    "env": "",
}
"""Of a run of each command that ends well."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sources, and with the outputs that commands read."""
    folder = tmp_path_factory.mktemp("streams")
    write_jsonl(folder / "a.jsonl", texts(60))
    save_tokenizer(folder / "tok")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, options in (("out", ""), ("index", " --materialize index")):
            assert run("build", *(_BUILD.format(name) + options).split(), "-q").code == 0
        assert run("check", "out", "--baseline", "baseline.json", "--update-baseline").code == 0
        loader = PackedLoader(PackedShards("out"), packs_per_batch=1)
        with LossLog("losses", loader) as log:
            for step, batch in enumerate(itertools.chain.from_iterable([loader] * 8)):
                log.add(step, batch, np.ones(batch.num_segments))
        damaged = folder / "damaged"
        assert run("merge", "out", "-o", damaged, "--shard-size", "1MB").code == 0
    shard = next(damaged.glob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-100] + bytes(100))
    return folder


def into_a_closed_pipe(place: Path, *arguments: str) -> int:
    """Run a command whose standard output and error nothing reads. Returns its exit code."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return subprocess.run(
            warm.command("packprep", *arguments), cwd=place, stdout=writing, stderr=writing
        ).returncode
    finally:
        os.close(writing)


@pytest.mark.parametrize("name", long_but({*COMMANDS} - {"sample"}, COMMANDS))
def test_a_command_whose_reader_has_gone_ends_with_0(place: Path, name: str) -> None:
    assert into_a_closed_pipe(place, name, *_ARGUMENTS[name].split()) == 0
    assert into_a_closed_pipe(place, name, "--help") == 0


def test_an_exit_code_does_not_depend_on_the_reader(place: Path) -> None:
    assert into_a_closed_pipe(place, "verify", "damaged") == 1
    assert into_a_closed_pipe(place, "show", "missing") == 2


def test_a_new_process_outlives_its_reader_too(place: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", "set -o pipefail; python -m packprep stats out 2>&1 | head -1"],
        cwd=place,
        env=warm.environment(place),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "")
