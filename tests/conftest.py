"""Settings of the whole test run: no test is timed; one store; how many blocks of docs ran."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from hypothesis import settings

import packprep.schemas  # noqa: F401 (its settings of numba, before a test loads numba)

from .helpers import examples, warm
from .helpers.store_servers import SERVERS, StoreServer, Tap, running

if TYPE_CHECKING:
    from .helpers.zoo import Zoo

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch: tests run side by side

examples.register()
settings.load_profile("short")  # --hypothesis-profile chooses another


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store",
        default="moto",
        choices=list(SERVERS),
        help="server of the tests of outputs and sources in a store",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of the zoo, and start the server of tests/helpers/warm.py, for all workers.

    The server imports nothing until asked.
    """
    # gcsfs and adlfs send a part of a shard in one piece.
    config.addinivalue_line("filterwarnings", "ignore:Sending a large body:ResourceWarning")
    if hasattr(config, "workerinput"):
        return
    folder = tempfile.TemporaryDirectory(prefix="packprep-tests-")
    config.add_cleanup(folder.cleanup)
    _set(config, "PACKPREP_ZOO", _new(Path(folder.name) / "zoo"))
    if sys.platform != "linux":
        return
    address, cache = Path(folder.name) / "server", Path(folder.name) / "cache"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.warm", address],
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        env=warm.environment(cache),
    )
    _set(config, "PACKPREP_WARM", address)

    def stop() -> None:
        process.communicate()

    config.add_cleanup(stop)


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _set(config: pytest.Config, name: str, value: Path) -> None:
    """Set a variable of the environment until the end of the run. Workers inherit it."""
    patch = pytest.MonkeyPatch()
    patch.setenv(name, str(value))
    config.add_cleanup(patch.undo)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a test wrote into an output of the zoo."""
    if hasattr(session.config, "workerinput"):
        return
    folder = Path(os.environ["PACKPREP_ZOO"])
    if not any(folder.iterdir()):
        return
    from .helpers.zoo import Zoo

    if changed := Zoo(folder).changed():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        print("\nA test changed the zoo, use zoo.copy:", *changed, sep="\n  ", file=sys.stderr)


@pytest.fixture(scope="session")
def record_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs of the record, which both editions are run on."""
    from .record import inputs

    folder = tmp_path_factory.mktemp("inputs")
    inputs.make(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def environment_of_a_module() -> Iterator[None]:
    """Take back what a module's tests, or libraries that they import, set in the environment.

    Later tests in the same process pass it on to commands, which would behave otherwise.
    """
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture(scope="session")
def zoo() -> "Zoo":
    """The finished outputs of tests/helpers/zoo.py, which tests only read."""
    from .helpers.zoo import Zoo

    return Zoo(Path(os.environ["PACKPREP_ZOO"]))


@pytest.fixture(scope="session")
def warm_server() -> str:
    """The address of the server of tests/helpers/warm.py, empty where there is none."""
    return os.environ.get("PACKPREP_WARM", "")


@pytest.fixture(scope="session")
def store_server(request: pytest.FixtureRequest) -> StoreServer:
    """The kind of server that the tests of stores run with."""
    return SERVERS[request.config.getoption("--store")]


@pytest.fixture(scope="session")
def store_environment(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The environment of clients of a real server."""
    with running(request.config.getoption("--store")) as environment:
        yield environment


@pytest.fixture
def store(store_server: StoreServer, store_environment: dict[str, str]) -> Iterator[Any]:
    """fsspec's file system of that server, which every client of the test talks to."""
    import fsspec

    with mock.patch.dict(os.environ, store_environment):
        yield fsspec.filesystem(store_server.protocol)


@pytest.fixture
def tap(
    store_server: StoreServer, store_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Tap]:
    """A proxy before that server; clients give up at once."""
    with contextlib.closing(Tap(store_environment)) as proxy:
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        store_server.give_up_at_once(monkeypatch)
        yield proxy


@pytest.fixture
def s3_store(store_server: StoreServer, store: Any) -> Any:
    """s3fs, for tests of S3 alone."""
    if not store_server.is_s3:
        pytest.skip("tests what only S3 has")
    return store


@pytest.fixture
def new_clients(store_server: StoreServer, store: Any) -> Iterator[None]:
    """Let clients of `store` be created again, for a test that changes its environment.

    The next test gets new ones too.
    """
    store_server.file_system()
    yield
    store_server.file_system()


@pytest.fixture
def bucket(store_server: StoreServer, store: Any, request: pytest.FixtureRequest) -> str:
    """URL of a new bucket."""
    name = f"bucket-{abs(hash(request.node.nodeid))}"
    store.mkdir(name)
    return f"{store_server.protocol}://{name}"
