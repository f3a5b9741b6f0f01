"""A cluster makes the bytes that one process makes.

Also when a process, a node or the head of it dies.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.config.verbs import PACK, TOKENIZE
from packprep.output.staging import staging_path
from packprep.schemas import check_files, read_manifest
from packprep.support.errors import ConfigError
from tests.helpers import warm
from tests.helpers.corpus import build_options, save_tokenizer, texts, write_jsonl
from tests.helpers.errors import refused

ROOT = Path(__file__).parents[2]
quiet = pytest.mark.filterwarnings("ignore")  # Ray warns of its future and leaves pipes open


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Twelve units, some seconds of work for two cores."""
    folder = tmp_path_factory.mktemp("corpus")
    sources = [
        write_jsonl(folder / f"{number}.jsonl", texts(1200, seed=number)) for number in range(8)
    ]
    return {
        "sources": tuple(map(str, sources)),
        "tokenizer": str(save_tokenizer(folder / "tokenizer")),
        "engine": "hf",
        "max_length": 128,
        "unit_size": 200_000,
        "window": 600_000,
        "holdout": 0.1,
    }


@pytest.fixture(scope="module")
def expected(corpus: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The data of the manifest that one process makes."""
    return build(BuildConfig(**corpus, output=str(tmp_path_factory.mktemp("local") / "out"))).data


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and a second node, one core each, with small object stores."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install packprep[ray]")
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = str(ROOT)
    node = {"num_cpus": 1, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    cluster.add_node(**node)
    yield cluster
    cluster.shutdown()


def building(corpus: dict[str, Any], output: Path, address: str | None) -> "subprocess.Popen[str]":
    return started("build", corpus["sources"], corpus, output, address)


def started(
    verb: str, inputs: Sequence[str], options: dict[str, Any], output: Path, address: str | None
) -> "subprocess.Popen[str]":
    """A command on a cluster; options but those of sources."""
    words = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
    words = [word for word in words if not word.startswith("--sources")]
    executor = [f"--executor=ray:{address}" if address else "--executor=ray", "--num-proc=2"]
    return subprocess.Popen(
        warm.command("packprep", verb, *inputs, *words, "-o", str(output), *executor),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )


def until(seen: Callable[[], Any], process: "subprocess.Popen[str]") -> Any:
    """First result of `seen` that is something, while the build runs."""
    while process.poll() is None:
        if found := seen():
            return found
        time.sleep(0.005)
    raise AssertionError(f"the build ended first: {process.communicate()[1]}")


def ended(process: "subprocess.Popen[str]", code: int = 0) -> str:
    said = process.communicate()[1]
    assert process.returncode == code, said
    return said


def tokens(output: Path) -> list[Path]:
    return list((staging_path(output) / "tokens").glob("*.json"))


def at_work() -> list[int]:
    """Processes of our cluster that do a task now."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::do") and os.getpid() in parents(
                int(path.parent.name)
            ):
                found.append(int(path.parent.name))
        except OSError:  # it has ended
            continue
    return found


def parents(pid: int) -> Iterator[int]:
    """The process that started this one, and so on."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        yield pid


def data_of(output: Path) -> dict[str, Any]:
    """The data of a finished output, whose files are as it says."""
    manifest = read_manifest(output)
    assert check_files(output, manifest, "sha256") == []
    assert manifest.run["executor"] == "ray"
    assert not staging_path(output).exists()
    return manifest.data


@quiet
@pytest.mark.long
def test_ctrl_c_ends_the_tasks_on_all_nodes(
    corpus: dict[str, Any], cluster: Any, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = building(corpus, output, cluster.address)
    until(lambda: tokens(output), process)
    process.send_signal(signal.SIGINT)
    said = ended(process, 130)
    assert "stopped; to resume: packprep build" in said
    there = tokens(output)
    time.sleep(1)
    assert at_work() == []
    assert tokens(output) == there


@quiet
@pytest.mark.long
def test_two_nodes_and_a_worker_killed_in_its_unit_make_the_bytes_of_one_process(
    corpus: dict[str, Any], expected: dict[str, Any], cluster: Any, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    process = building(corpus, output, cluster.address)
    until(lambda: list((staging_path(output) / "tokens").glob("*.tmp")), process)
    os.kill(until(at_work, process)[0], signal.SIGKILL)
    said = ended(process)
    assert len(set(re.findall("tasks run on .*, node ([0-9a-f]+)", said))) == 2
    assert data_of(output) == expected


@quiet
@pytest.mark.long
def test_tokenize_and_pack_on_a_cluster_make_the_bytes_of_one_process(
    corpus: dict[str, Any], expected: dict[str, Any], cluster: Any, tmp_path: Path
) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    text, packs = ({k: v for k, v in corpus.items() if k in of} for of in (TOKENIZE, PACK))
    ended(started("tokenize", corpus["sources"], text, store, cluster.address))
    assert not staging_path(store).exists()
    ended(started("pack", [str(store)], packs, output, cluster.address))
    assert data_of(output) == expected


@quiet
@pytest.mark.long
def test_a_build_goes_on_when_a_node_is_lost_and_stops_when_the_head_is(
    corpus: dict[str, Any], expected: dict[str, Any], cluster: Any, tmp_path: Path
) -> None:
    output = tmp_path / "node"
    process = building(corpus, output, cluster.address)
    until(lambda: tokens(output), process)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    ended(process)
    assert data_of(output) == expected

    output = tmp_path / "head"
    process = building(corpus, output, cluster.address)
    until(lambda: tokens(output), process)
    cluster.head_node.kill_gcs_server()
    assert "is lost; finished work is kept, so run the same command to resume" in ended(process, 3)
    assert tokens(output)
    ended(building(corpus, output, None))
    assert data_of(output) == expected


def test_without_ray_a_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    options = build_options(tmp_path, {"a.jsonl": ["one"]}, engine="hf", executor="ray")
    with refused(ConfigError, "executor ray needs Ray", "pip install packprep[ray]"):
        build(BuildConfig(**options))
