"""Requests to the Hugging Face hub: one sentence if it cannot be reached, one line for retries.

The hub's client retries an unreachable hub six times in 23 seconds, with two lines each time, and
then uses its cache. Here one request for one file comes first.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from packprep.support.errors import ConfigError, PackprepError, StoppedError

# Errors of httpx and of requests, one of which the hub's client uses; the builtin error is raised
# in its offline mode.
_NO_CONNECTION = {"ConnectError", "ConnectTimeout", "ConnectionError"}
_RETRIES = "huggingface_hub.utils._http"  # the logger of the client's retries


class _OneLine(logging.Filter):
    """Filter that rewrites the first message about retries and drops the others."""

    first = True

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        shown, self.first = self.first, False
        record.msg, record.args = (
            f"the hub does not answer, retrying: {record.getMessage()}",
            None,
        )
        return shown


@contextmanager
def asking(
    name: str, file: str, *, revision: str | None = None, repo_type: str = "model"
) -> Iterator[str]:
    """Context manager for requests to the hub about a repository.

    Yields the reason why the hub cannot be reached; "" if it answers. If it cannot be reached, its
    client is offline inside the block, so that the cache answers at once. file: a file that the
    repository should have; errors about it are left to the request that follows.
    """
    from huggingface_hub import constants

    reason = _unreachable(name, file, revision, repo_type)
    offline, once = constants.HF_HUB_OFFLINE, _OneLine()
    logging.getLogger(_RETRIES).addFilter(once)
    constants.HF_HUB_OFFLINE = offline or bool(reason)
    try:
        yield reason
    finally:
        constants.HF_HUB_OFFLINE = offline
        logging.getLogger(_RETRIES).removeFilter(once)


def _unreachable(name: str, file: str, revision: str | None, repo_type: str) -> str:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    if constants.HF_HUB_OFFLINE:
        return (
            "HF_HUB_OFFLINE is set, and the local cache does not have it; check the name, or "
            "unset HF_HUB_OFFLINE"
        )
    url = hf_hub_url(name, file, revision=revision, repo_type=repo_type)
    try:
        get_hf_file_metadata(url)
    # The class depends on the version; other errors are left to the client's own requests.
    except Exception as error:
        if not _NO_CONNECTION.isdisjoint(kind.__name__ for kind in type(error).__mro__):
            host = urlsplit(url).netloc
            return (
                f"{host} cannot be reached ({error}), and the local cache does not have it; check "
                "the name and the connection"
            )
    return ""


def explained(error: Exception) -> str:
    """Error of the hub as the end of a sentence."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        return "it is gated; ask for access on its page, then run hf auth login"
    if isinstance(error, RepositoryNotFoundError):
        return (
            "there is no repository of that name; check the name, or run hf auth login if the "
            "repository is private"
        )
    if isinstance(error, RevisionNotFoundError):
        return "it has no such revision; check what follows @ in --tokenizer"
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return "it has no tokenizer.json; choose a repository with one, or save a fast tokenizer"
    return " ".join(str(error).split())[:200]


@contextmanager
def hub_client() -> Iterator[Any]:
    """The hub's client, without its progress bars and with one line about retries."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if constants.HF_HUB_OFFLINE:
        raise ConfigError("HF_HUB_OFFLINE is set; unset it to reach the hub")
    once, shown = _OneLine(), not are_progress_bars_disabled()
    logging.getLogger(_RETRIES).addFilter(once)
    disable_progress_bars()
    try:
        yield HfApi()
    finally:
        logging.getLogger(_RETRIES).removeFilter(once)
        if shown:
            enable_progress_bars()


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """Raise the errors of writing to a repository as sentences.

    ConfigError if the same command cannot succeed, StoppedError if it can resume.
    """
    try:
        yield
    except PackprepError:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error, RuntimeError) else error
        response = getattr(cause, "response", None)
        status = getattr(response, "status_code", None)
        text = " ".join(str(cause).split())[:300]
        resume = "uploaded shards are kept, so run the same command to resume"
        if status in (401, 403):
            raise ConfigError(
                f"{name}: the hub refuses access ({status}); run hf auth login, or set HF_TOKEN to "
                "a token that may write to it"
            ) from None
        if status == 412:
            raise StoppedError(
                f"{name}: somebody else changed it during the push; {resume}"
            ) from None
        if status is not None and 400 <= status < 500 and status not in (408, 429):
            raise ConfigError(f"{name}: the hub refuses ({status}): {text}") from None
        names = {kind.__name__ for kind in type(cause).__mro__}
        if status is not None or names & {*_NO_CONNECTION, "TransportError", "RequestException"}:
            raise StoppedError(f"{name}: the hub does not answer: {text}; {resume}") from None
        raise
