"""Settings of the whole test run: no test is timed; one S3 server; how many blocks of docs ran."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings

from .helpers import s3, warm

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch: tests run side by side

settings.register_profile(
    "packprep", deadline=None
)  # an example may compile a kernel, or be stopped for seconds
settings.load_profile("packprep")


def pytest_configure(config: pytest.Config) -> None:
    """Start one server of tests/helpers/warm.py for all workers. It imports nothing until asked."""
    if hasattr(config, "workerinput") or sys.platform != "linux":
        return
    folder = tempfile.TemporaryDirectory(prefix="packprep-tests-")
    address, cache = Path(folder.name) / "server", Path(folder.name) / "cache"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.warm", address],
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        env=warm.environment(cache),
    )
    os.environ["PACKPREP_WARM"] = str(address)

    def stop() -> None:
        del os.environ["PACKPREP_WARM"]
        process.communicate()
        folder.cleanup()

    config.add_cleanup(stop)


@pytest.fixture(scope="session")
def warm_server() -> str:
    """The address of the server of tests/helpers/warm.py, empty where there is none."""
    return os.environ.get("PACKPREP_WARM", "")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[dict[str, str]]:
    """The environment of clients of a real S3 server."""
    with s3.server() as environment:
        yield environment


@pytest.fixture
def store(s3_server: dict[str, str]) -> Iterator[Any]:
    """s3fs for that server, which every S3 client of the test talks to."""
    import s3fs

    with mock.patch.dict(os.environ, s3_server):
        yield s3fs.S3FileSystem()


@pytest.fixture
def new_clients(store: Any) -> Iterator[None]:
    """Let clients of `store` be created again, for a test that changes its environment.

    The next test gets new ones too.
    """
    s3.file_system()
    yield
    s3.file_system()


@pytest.fixture
def bucket(store: Any, request: pytest.FixtureRequest) -> str:
    """s3://NAME of a new bucket."""
    name = f"bucket-{abs(hash(request.node.nodeid))}"
    store.mkdir(name)
    return f"s3://{name}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many blocks of the documentation ran, and which did not, with their reasons."""
    pages = [
        dict(report.user_properties)["docs_blocks"]
        for report in terminalreporter.getreports("passed")
        if "docs_blocks" in dict(report.user_properties)
    ]
    if not pages:
        return
    ran, exempt = (
        sum(page["ran"] for page in pages),
        [row for page in pages for row in page["exempt"]],
    )
    terminalreporter.section("blocks of the documentation")
    terminalreporter.line(
        f"{ran} blocks ran on {len(pages)} pages; {len(exempt)} are exempt "
        f"({len(exempt) / max(ran + len(exempt), 1):.0%})"
    )
    for where, reason in exempt:
        terminalreporter.line(f"  {where}: {reason}")
