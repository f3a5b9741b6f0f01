"""Errors of the clients of stores, as one StoreError."""

import contextlib
import errno
from collections.abc import Iterator

# Where the exceptions of stores' clients come from: few of them are an OSError.
_CLIENTS = (
    "adlfs",
    "aiobotocore",
    "aiohttp",
    "asyncio",
    "azure",
    "botocore",
    "fsspec",
    "gcsfs",
    "google",
    "requests",
    "s3fs",
    "urllib3",
)
NO_BUCKET = "bucket does not exist"


class StoreError(OSError):
    """A store that does not answer or refuses: its URL, and its message.

    errno: EACCES where it is a matter of rights, ENOENT where there is no such bucket, EBUSY where
    an object was replaced while it was read, EIO for the rest.
    """

    def __init__(self, number: int, reason: str, url: str) -> None:
        super().__init__(number, reason, url)


@contextlib.contextmanager
def store_errors(url: str, *, writing: bool = False) -> Iterator[None]:
    """Raise the errors of clients of stores as a StoreError.

    writing: nothing can be missing then but the bucket.
    """
    try:
        yield
    except (StoreError, FileExistsError):
        raise
    except FileNotFoundError as error:
        if not writing and NO_BUCKET not in str(error):
            raise
        raise StoreError(errno.ENOENT, "there is no such bucket", url) from None
    except PermissionError as error:
        raise StoreError(errno.EACCES, f"access is denied: {error_text(error)}", url) from error
    except Exception as error:
        if (
            not isinstance(error, OSError)
            and type(error).__module__.partition(".")[0] not in _CLIENTS
        ):
            raise
        if getattr(error, "errno", None) == errno.EBUSY:
            raise StoreError(errno.EBUSY, "it was replaced while it was read", url) from None
        credentials = "Credential" in type(error).__name__ or "credential" in str(error)
        number = errno.EACCES if credentials else errno.EIO
        raise StoreError(number, f"the store says: {error_text(error)}", url) from error


def error_text(error: Exception) -> str:
    """Message of an exception, on one line."""
    return " ".join(
        str(error.strerror if isinstance(error, OSError) and error.strerror else error).split()
    )[:300]
