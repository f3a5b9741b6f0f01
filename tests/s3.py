"""A real S3 server of this machine, talked to over HTTP, for tests of everything remote."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def server() -> Iterator[dict[str, str]]:
    """The environment that sends every S3 client of a process, or of one it starts, to a new and empty server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | _KEYS)
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
    """s3fs for the server of this process's environment, with nothing remembered of another one."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    return s3fs.S3FileSystem()
