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
        if not writing and not no_bucket(error):
            raise
        raise StoreError(errno.ENOENT, "there is no such bucket", url) from None
    except PermissionError as error:
        raise StoreError(errno.EACCES, f"access is denied: {error_text(error)}", url) from error
    except Exception as error:
        chain = list(_causes(error))
        if not any(
            isinstance(cause, OSError) or type(cause).__module__.partition(".")[0] in _CLIENTS
            for cause in chain
        ):
            raise
        status = http_status(error)
        if getattr(error, "errno", None) == errno.EBUSY or (status == 412 and not writing):
            raise StoreError(errno.EBUSY, "it was replaced while it was read", url) from None
        credentials = "Credential" in type(error).__name__ or "credential" in str(error)
        credentials |= status in (401, 403)
        number = errno.EACCES if credentials else errno.EIO
        raise StoreError(number, f"the store says: {error_text(error)}", url) from error


def no_bucket(error: BaseException) -> bool:
    """True if an error of S3 says that there is no such bucket, not only no such object."""
    responses = [getattr(cause, "response", None) for cause in _causes(error)]
    return any(
        isinstance(response, dict) and response.get("Error", {}).get("Code") == "NoSuchBucket"
        for response in responses
    )


def http_status(error: BaseException) -> int | None:
    """HTTP status that a client's error, or one of its causes, is about; None if there is none."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict):  # botocore
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) or None
        if isinstance(status := getattr(response, "status_code", None), int):
            return status
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, its cause, the cause of that one, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def error_text(error: Exception) -> str:
    """Message of an exception, on one line."""
    return " ".join(
        str(error.strerror if isinstance(error, OSError) and error.strerror else error).split()
    )[:300]
