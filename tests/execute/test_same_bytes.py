"""Every executor makes the bytes of one thread, for each kind of build: a table of both."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.execute import worker, worker_pool
from packprep.execute.pipeline import build_share
from packprep.output.staging import staging_path
from packprep.schemas import check_files, read_manifest
from tests.helpers import warm
from tests.helpers.corpus import RecordedProgress
from tests.helpers.zoo import Zoo

ROOT = Path(__file__).parents[2]
KINDS = ("split", "turns", "pairs", "trees", "mix", "phases", "epochs", "index")
"""Members of the zoo, each of several units and windows; split is of plain text."""
WORKER = ("-m", "packprep.execute.worker")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a Ray cluster with two cores."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install packprep[ray]")
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = str(ROOT)
    node = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    yield cluster.address
    cluster.shutdown()


def by_threads(config: BuildConfig, _: pytest.FixtureRequest) -> None:
    build(replace(config, num_proc=2))


def by_processes(config: BuildConfig, request: pytest.FixtureRequest) -> None:
    patch, answers = request.getfixturevalue("monkeypatch"), []

    def result_of(answer: Any) -> Any:
        answers.append(answer)
        return worker.result_of(answer)

    patch.setattr(worker_pool, "COMMAND", warm.command("python", *WORKER, RAYON_NUM_THREADS="1"))
    patch.setattr(worker_pool, "result_of", result_of)
    build(replace(config, num_proc=2, executor="isolated"))
    assert len(answers) >= 4 * (config.input_ids_column is None)  # ids need no tokenizer


def by_parts(config: BuildConfig, _: pytest.FixtureRequest) -> None:
    """In any order, one of them twice; the last one signs off, and a late one has nothing to do."""
    done = [build_share(replace(config, part=f"{part}/4")) for part in (2, 0, 2, 3, 1)]
    assert done[2]["slices tokenized here"] == 0
    assert done[-1]["slices tokenized"] == done[-1]["slices"] >= 4
    assert build_share(replace(config, part="0/4")) == {"task": 0, "tasks": 4}


def by_ray(config: BuildConfig, request: pytest.FixtureRequest) -> None:
    progress = RecordedProgress()
    build(replace(config, executor=f"ray:{request.getfixturevalue('cluster')}"), progress=progress)
    assert any(line.startswith("tasks run on ") for line in progress.lines)


@pytest.mark.filterwarnings("ignore")  # Ray warns of its future and leaves pipes open
@pytest.mark.parametrize(
    ("executor", "kind"),
    [
        pytest.param(executor, kind, marks=[pytest.mark.long] * (kind not in quick))
        for executor, quick in {
            by_threads: ("turns",),
            by_processes: ("turns",),
            by_parts: KINDS,
            by_ray: (),
        }.items()
        for kind in KINDS
    ],
)
def test_every_executor_makes_the_bytes_of_one_thread(
    executor: Callable[[BuildConfig, pytest.FixtureRequest], None],
    kind: str,
    zoo: Zoo,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    output = tmp_path / "out"
    executor(replace(zoo.config(kind), output=str(output)), request)
    manifest = read_manifest(output)
    assert manifest.data == read_manifest(zoo[kind]).data
    assert check_files(output, manifest, "sha256") == []
    assert not staging_path(output).exists()
