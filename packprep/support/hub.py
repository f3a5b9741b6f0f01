"""Requests to the Hugging Face hub.

A sentence at once where it cannot be reached, one line where it has to be asked again.

Its client asks a hub that is not there six times in 23 seconds, with two lines each time, before it
takes what its cache has. Here the hub is asked for one file first, once.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

# Errors of httpx and of requests, whichever the hub's client uses; the builtin one is that of its
# offline mode.
_NO_CONNECTION = {"ConnectError", "ConnectTimeout", "ConnectionError"}
_RETRIES = "huggingface_hub.utils._http"  # the logger of the client's retries


class _OneLine(logging.Filter):
    """The first message of a row of retries, in other words, and none of those after it."""

    first = True

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        shown, self.first = self.first, False
        record.msg, record.args = (
            f"the hub does not answer, so it is asked again: {record.getMessage()}",
            None,
        )
        return shown


@contextmanager
def asking(
    name: str, file: str, *, revision: str | None = None, repo_type: str = "model"
) -> Iterator[str]:
    """Context manager for requests to the hub about a repository.

    Gives the reason why it cannot be reached, "" where it answers.

    Where it cannot be reached its client is offline for the while, so that the cache answers at
    once. file: one that the repository should have; what the hub says about it is left to the
    request that follows.
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
            "HF_HUB_OFFLINE is set, and the cache here does not have it; check the name, or "
            "unset HF_HUB_OFFLINE"
        )
    url = hf_hub_url(name, file, revision=revision, repo_type=repo_type)
    try:
        get_hf_file_metadata(url)
    # of one kind or another by version; all but these are for the client's own requests
    except Exception as error:
        if not _NO_CONNECTION.isdisjoint(kind.__name__ for kind in type(error).__mro__):
            host = urlsplit(url).netloc
            return (
                f"{host} cannot be reached ({error}), and the cache here does not have it; check "
                "the name and the "
                "connection"
            )
    return ""


def explained(error: Exception) -> str:
    """An answer of the hub as the end of a sentence."""
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
            "there is no repository of that name; check it, or run hf auth login if the "
            "repository is private"
        )
    if isinstance(error, RevisionNotFoundError):
        return "it has no such revision; check --tokenizer-revision"
    if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
        return "it has no tokenizer.json; choose a repository with one, or save a fast tokenizer"
    return " ".join(str(error).split())[:200]
