import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from packprep.schemas import StoreError
from packprep.schemas.storage import stores
from packprep.schemas.storage.stores import Store


@pytest.fixture(params=["server", "memory"])
def folder(request: pytest.FixtureRequest) -> Store:
    """A folder of a server, and one of a store without one."""
    if request.param == "server":
        return Store(f"{request.getfixturevalue('bucket')}/folder")
    return Store(f"memory://{abs(hash(request.node.nodeid))}/folder")


def test_only_one_of_several_creates_an_object(folder: Store) -> None:
    assert [folder.create("a", content) for content in (b"first", b"second")] == [True, False]
    assert folder.read("a") == b"first"
    folder.delete(["a", "b"])
    assert folder.find("a") is None
    assert folder.create("a", b"third")


def test_of_many_that_create_an_object_at_once_one_wins(bucket: str) -> None:
    folder, together = Store(bucket), threading.Barrier(8)

    def create(number: int) -> bool:
        together.wait()
        return folder.create("a", str(number).encode())

    for _ in range(10):
        with ThreadPoolExecutor(8) as pool:
            created = list(pool.map(create, range(8)))
        assert created.count(True) == 1
        assert folder.read("a") == str(created.index(True)).encode()
        folder.delete(["a"])


class _RefusedError(Exception):
    """An error of botocore, with the status of its answer."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize(("status", "created", "asked"), [(409, True, 2), (412, False, 1)])
def test_a_create_that_conflicts_is_retried_and_one_that_is_refused_without_a_word_is_not(
    bucket: str, monkeypatch: pytest.MonkeyPatch, status: int, created: bool, asked: int
) -> None:
    """Ceph gives no message with 412, by which s3fs would know that the object exists."""
    folder = Store(bucket)
    real, calls = folder._fs.pipe_file, [0]

    def refuses(*given: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise OSError(errno.EINVAL, None) from _RefusedError(status)
        return real(*given, **more)

    monkeypatch.setattr(folder._fs, "pipe_file", refuses)
    assert folder.create("a", b"") is created
    assert calls == [asked]


def test_objects_are_listed_by_name_with_their_sizes(folder: Store) -> None:
    assert folder.list() == {}
    for name in ("b/c", "a", "b.txt", "Z"):
        folder.write(name, name.encode())
    folder.under("b").write("d", b"")
    sizes = {name: stored.bytes for name, stored in folder.list().items()}
    assert [*sizes.items()] == [("Z", 1), ("a", 1), ("b.txt", 5), ("b/c", 3), ("b/d", 0)]
    assert list(folder.list("b")) == ["b/c", "b/d"]
    assert list(folder.glob("b*")) == ["b.txt"]
    assert list(folder.glob("**/c")) == ["b/c"]


def test_an_object_appears_once_it_is_complete_and_never_if_writing_fails(bucket: str) -> None:
    folder = Store(bucket)
    size = 40 << 20  # more than one part
    with folder.writing("large") as upload:
        for _ in range(5):
            upload.write(bytes(size // 5))
        assert folder.find("large") is None
    assert (found := folder.find("large")) is not None
    assert found.bytes == size
    for written in (10, size):
        with pytest.raises(ZeroDivisionError), folder.writing("broken") as upload:  # noqa: PT012
            upload.write(bytes(written))  # the error must come from within the block
            raise ZeroDivisionError
        assert folder.find("broken") is None


def test_an_object_is_read_from_its_beginning_or_anywhere(folder: Store) -> None:
    folder.write("a", b"0123456789")
    with folder.open("a") as file:
        assert file.read(3) == b"012"
        file.seek(7)
        assert file.read() == b"789"
    for asking in (folder.open, folder.read):
        with pytest.raises(FileNotFoundError):
            asking("b")


def test_a_copy_has_the_same_bytes_and_is_made_inside_the_store(folder: Store) -> None:
    folder.write("a", b"0123456789")
    folder.copy_to("a", folder.under("other"), "b")
    assert folder.read("other/b") == folder.read("a")
    with pytest.raises(FileNotFoundError):
        folder.copy_to("gone", folder, "c")


def test_a_version_changes_with_the_object_and_time_is_the_stores(folder: Store) -> None:
    folder.write("a", b"one")
    before = folder.find("a")
    folder.write("a", b"two")
    after = folder.find("a")
    assert before is not None
    assert after is not None
    assert (before.bytes, before.version == after.version) == (after.bytes, False)
    folder.write("b", b"")
    assert folder.modified("b") >= folder.modified("a")


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(bucket: str) -> None:
    folder = Store(bucket)
    folder.write("a", b"first" * 10)
    with folder.open("a") as file:
        folder.write("a", b"other" * 10)
        with pytest.raises(StoreError, match="it was replaced while it was read") as error:
            file.read()
    assert (error.value.errno, error.value.filename) == (errno.EBUSY, f"{bucket}/a")


def test_parts_sent_by_a_killed_process_are_deleted(bucket: str, s3_store: Any) -> None:
    name = bucket.removeprefix("s3://")
    for key in ("out/a/x", "out/b/x"):
        file = s3_store.open(f"{name}/{key}", "wb", block_size=5 << 20)
        file.write(bytes(12 << 20))
        file.closed = True  # the upload is never completed
    Store(f"{bucket}/out").forget_uploads("a")
    assert [upload["Key"] for upload in s3_store.list_multipart_uploads(name)] == ["out/b/x"]
    Store(f"{bucket}/out").forget_uploads("")
    assert s3_store.list_multipart_uploads(name) == []


@pytest.mark.usefixtures("new_clients")
def test_an_error_of_a_store_has_its_address(
    bucket: str, s3_store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = Store("s3://nobody-has-this")
    for asking in (lambda: nobody.read("a"), nobody.list):
        with pytest.raises(StoreError, match="there is no such bucket") as error:
            asking()
        assert error.value.errno == errno.ENOENT
    with pytest.raises(StoreError, match="not the address of a store: Protocol not known: foo"):
        Store("foo://bucket/x")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    s3_store.clear_instance_cache()
    with pytest.raises(StoreError, match="Could not connect to the endpoint URL") as error:
        Store(f"{bucket}/x").write("a", b"")
    assert (error.value.errno, error.value.filename) == (errno.EIO, f"{bucket}/x/a")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3_store.clear_instance_cache()
    with pytest.raises(StoreError, match="Unable to locate credentials") as error:
        Store(f"{bucket}/x").write("a", b"")
    assert error.value.errno == errno.EACCES


@pytest.mark.parametrize(
    ("protocol", "package"),
    [("gs", r"packprep\[gcs\]"), ("nothing", "the package that fsspec names")],
)
def test_a_missing_package_is_named(
    monkeypatch: pytest.MonkeyPatch, protocol: str, package: str
) -> None:
    def missing(url: str, **options: Any) -> Any:
        raise ImportError(f"install the package of {url}")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    words = rf"{protocol}://bucket/x needs a package that is not installed: .*install {package}"
    with pytest.raises(ImportError, match=words):
        Store(f"{protocol}://bucket/x")


def test_a_copy_that_azure_has_only_begun_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator copies at once, so this is a client that answers like Azure."""
    folder, answers = Store("memory://azure/folder"), ["pending", "pending", "success", "failed"]

    class Client:
        async def __aenter__(self) -> "Client":
            return self

        async def __aexit__(self, *error: object) -> None:
            pass

        async def get_blob_properties(self) -> Any:
            return SimpleNamespace(copy=SimpleNamespace(status=answers.pop(0)))

    files = SimpleNamespace(
        cp_file=lambda source, to: None,
        split_path=lambda path: (*path.split("/", 1), None),
        service_client=SimpleNamespace(get_blob_client=lambda container, blob: Client()),
        loop=fsspec.asyn.get_loop(),
    )
    monkeypatch.setattr(folder, "_files", files)
    monkeypatch.setattr(stores, "_POLL", 0)
    folder.copy_to("a", folder, "b")
    assert answers == ["failed"]
    with pytest.raises(StoreError, match="folder/b ended with status failed"):
        folder.copy_to("a", folder, "b")
