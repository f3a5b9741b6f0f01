"""A process that tokenizes slices of a build: `python -m packprep.execute.worker STAGING`.

It reads one JSON task a line, and writes one JSON answer a line, see `answer_to`.

    {"extent": {...}, "parts": [...], "first_rows": [...], "text": PATH}
        -> {"done": receipt}  a token file, see `tokenize_slice`

Before the answer it writes a dot for each batch of text, so that a process that works can be told
from one that hangs. A bad input or a full disk is an answer too. Anything worse ends the process,
and `packprep.execute.worker_pool` handles that. The process ends with its parent, ignores Ctrl-C
(the parent ends it), and is the first that the system kills when memory runs out.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from packprep.execute.job import load_job
from packprep.schemas.storage.store_errors import StoreError
from packprep.sources.position import Extent
from packprep.sources.units import Part, Slice
from packprep.support.errors import InputError, system_error
from packprep.support.from_json import from_json
from packprep.support.linux import end_with_parent, offer_to_be_killed
from packprep.tokens.token_files import DocumentError, quiet_datasets, tokenize_slice

WORKING = b"."
_ERRORS = {kind.__name__: kind for kind in (DocumentError, InputError, StoreError, OSError)}


def answer_to(do: Callable[[], object]) -> dict[str, object]:
    """Result or error of `do`, as JSON for another process: see `result_of`.

    Raises errors that are neither of the input nor of the system: defects of packprep.
    """
    try:
        return {"done": do()}
    except DocumentError as error:
        return {"error": "DocumentError", "arguments": [error.source, error.row, error.detail]}
    except InputError as error:
        return {"error": "InputError", "arguments": [str(error)]}
    except Exception as error:
        cause = error if isinstance(error, OSError) and error.errno else system_error(error)
        if cause is None:
            raise
        kind = "StoreError" if isinstance(cause, StoreError) else "OSError"
        path = cause.filename and str(cause.filename)
        return {"error": kind, "arguments": [cause.errno, cause.strerror, path]}


def result_of(answer: Mapping[str, Any]) -> Any:
    """Return or raise what the function of an answer did in another process."""
    if "error" in answer:
        raise _ERRORS[answer["error"]](*answer["arguments"])
    return answer["done"]


class Working(threading.Event):
    """An event that is never set. It is asked before each batch of text, and tells the parent."""

    def __init__(self, answers: Any) -> None:
        super().__init__()
        self._answers = answers

    def is_set(self) -> bool:
        self._answers.write(WORKING.decode())
        self._answers.flush()
        return False


def main(staging: Path) -> None:
    """Answer tasks until standard input ends."""
    _belong_to_parent()
    # Output that libraries print must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    tokenize = _tokenizing(staging, Working(answers))
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        _answer(answers, answer_to(partial(tokenize, json.loads(line))))


def _answer(answers: Any, answer: Mapping[str, object]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _tokenizing(staging: Path, working: Working) -> Callable[[Mapping[str, object]], object]:
    """Function from a task of a build to the receipt of its token file; loads the engine first."""
    import datasets  # noqa: F401 - takes seconds, which must not count for a slice

    job, chosen = load_job(staging)
    if (engine := job.engine(chosen)) is not None:
        engine.engine.encode(pa.array(["warm"], pa.large_string()))
    encoder = job.encoder(engine)

    def tokenize(task: Mapping[str, object]) -> dict[str, object]:
        with pa.memory_map(str(task["text"])) as file:
            table = pa.ipc.open_file(file).read_all()
        extent = from_json(Extent, task["extent"])
        parts = from_json(tuple[Part, ...], task["parts"])
        rows = from_json(tuple[int, ...], task["first_rows"])
        piece = Slice(**vars(extent), table=table, parts=parts, first_rows=rows)
        with quiet_datasets():
            return asdict(tokenize_slice(piece, job.tokens, encoder, job.sources, working))

    return tokenize


def _belong_to_parent() -> None:
    """Leave Ctrl-C to the parent, end with it, and be killed before it when memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    offer_to_be_killed()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
