"""Settings of the whole test run: no test is timed; one S3 server."""

import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings

from .helpers import s3

settings.register_profile(
    "packprep", deadline=None
)  # an example may compile a kernel, or be stopped for seconds
settings.load_profile("packprep")


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
