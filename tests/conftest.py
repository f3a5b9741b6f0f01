"""Settings of the whole test run: no test is timed; one set of inputs; servers of stores."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import settings

import packprep.schemas  # noqa: F401 (its settings of numba, before a test loads numba)

from .helpers import examples
from .helpers.store_servers import SERVERS, StoreServer, Tap, running

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
    # gcsfs and adlfs send a part of a shard in one piece.
    config.addinivalue_line("filterwarnings", "ignore:Sending a large body:ResourceWarning")


@pytest.fixture(scope="session")
def record_inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs of the record: files of each format, tokenizers and templates."""
    from .record import inputs

    folder = tmp_path_factory.mktemp("inputs")
    inputs.make(folder)
    return folder


class Said(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs a command, in a terminal of 80 columns."""
    from packprep.cli.main import main

    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments: "str | Path") -> Said:
        monkeypatch.setattr("sys.argv", ["packprep", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        code = stopped.value.code
        return Said(code if isinstance(code, int) else 0, *capsys.readouterr())

    return command


@pytest.fixture(scope="module", autouse=True)
def environment_of_a_module() -> Iterator[None]:
    """Take back what a module's tests, or libraries that they import, set in the environment.

    Later tests in the same process pass it on to commands, which would behave otherwise.
    """
    with mock.patch.dict(os.environ):
        yield


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
