"""Errors of the clients of stores, as one StoreError."""

import contextlib
import errno
from collections.abc import Iterator

# Packages that raise the exceptions of stores' clients. Few of these are an OSError.
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
    "httpx",
    "httpx2",
    "huggingface_hub",
    "requests",
    "s3fs",
    "urllib3",
)
NO_BUCKET = "bucket does not exist"


class StoreError(OSError):
    """A store does not answer, or refuses: its URL, and its message.

    errno: EACCES for missing rights, ENOENT for a missing bucket, EBUSY for an object that was
    replaced while it was read, EIO for everything else.
    """

    def __init__(self, number: int, reason: str, url: str) -> None:
        super().__init__(number, reason, url)


@contextlib.contextmanager
def store_errors(url: str, *, writing: bool = False) -> Iterator[None]:
    """Raise the errors of clients as a StoreError with this URL.

    A missing object stays a FileNotFoundError. writing: only the bucket can be missing.
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
        status = getattr(getattr(error, "response", None), "status_code", None)
        credentials = "Credential" in type(error).__name__ or "credential" in str(error)
        credentials |= status in (401, 403)  # of the hub
        number = errno.EACCES if credentials else errno.EIO
        raise StoreError(number, f"the store says: {error_text(error)}", url) from error


def error_text(error: Exception) -> str:
    """Message of an exception, on one line."""
    return " ".join(
        str(error.strerror if isinstance(error, OSError) and error.strerror else error).split()
    )[:300]
