"""A real S3 server on this machine, reached over HTTP, for tests of remote outputs."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """Environment variables that send S3 clients of a process to a new, empty server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | _KEYS
    )
    try:
        _wait(url, process)
        yield _KEYS | {"AWS_ENDPOINT_URL": url}
    finally:
        process.terminate()
        process.wait(10)


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        assert process.poll() is None, "the S3 server stopped; is moto[server] installed?"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the S3 server does not answer")


def file_system() -> Any:
    """s3fs for the server in the environment, without cached state of another server."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    return s3fs.S3FileSystem()


class Tap:
    """Proxy between a client and the server.

    It forwards the data of the client in pieces and counts them. At piece number `at` it forwards a
    `share` of the piece, calls `strike` once, and forwards nothing more over that connection. While
    `cut` is True it refuses every connection, like a network that is down.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        host, port = environment["AWS_ENDPOINT_URL"].removeprefix("http://").split(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.environment = environment | {"AWS_ENDPOINT_URL": url}
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

    def cut_at(self, at: int) -> None:
        """Break the network at piece number `at`, until `cut` is set to False."""

        def strike() -> None:
            self.cut = True

        self.arm(at=at, strike=strike)

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
