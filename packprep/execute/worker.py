"""A process that tokenizes slices of a build: `python -m packprep.execute.worker STAGING`.

It reads one JSON task a line, and writes one JSON answer a line.

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
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from packprep.support.from_json import from_json
from packprep.support.linux import end_with_parent, offer_to_be_killed

WORKING = b"."


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
    do = _Tasks(staging, Working(answers))
    _answer(answers, {"ready": True})
    for line in sys.stdin:
        _answer(answers, do(json.loads(line)))


def _answer(answers: Any, answer: Mapping[str, object]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


class _Tasks:
    """Function that does tasks of one build; loads the engine once."""

    def __init__(self, staging: Path, progress: Working) -> None:
        import datasets  # noqa: F401 - takes seconds, which must not count for a slice
        import pyarrow as pa

        from packprep.execute.job import load_job

        self.progress = progress
        job, name = load_job(staging)
        # The build starts one worker a core.
        self.job = replace(job, config=replace(job.config, num_proc=1))
        engine = self.job.engine(name)
        self.encoder = self.job.encoder(engine)
        engine.engine.encode(pa.array(["warm"], pa.large_string()))

    def __call__(self, task: Mapping[str, object]) -> dict[str, object]:
        from packprep.support.errors import InputError, system_error
        from packprep.tokens.token_files import DocumentError

        try:
            return {"done": self._tokenize(task)}
        except DocumentError as error:
            return {"document_error": [error.source, error.row, error.detail]}
        except InputError as error:
            return {"input_error": str(error)}
        except Exception as error:
            if (cause := system_error(error)) is None:
                raise
            path = cause.filename and str(cause.filename)
            return {"os_error": [cause.errno, cause.strerror, path]}

    def _tokenize(self, task: Mapping[str, object]) -> dict[str, object]:
        import pyarrow as pa

        from packprep.sources.position import Extent
        from packprep.sources.units import Part, Slice
        from packprep.tokens.token_files import quiet_datasets, tokenize_slice

        with pa.memory_map(str(task["text"])) as file:
            table = pa.ipc.open_file(file).read_all()
        extent = from_json(Extent, task["extent"])
        parts = from_json(tuple[Part, ...], task["parts"])
        rows = from_json(tuple[int, ...], task["first_rows"])
        piece = Slice(**vars(extent), table=table, parts=parts, first_rows=rows)
        with quiet_datasets():
            return asdict(
                tokenize_slice(
                    piece, self.job.tokens, self.encoder, self.job.sources, self.progress
                )
            )


def _belong_to_parent() -> None:
    """Leave Ctrl-C to the parent, end with it, and be killed before it when memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    offer_to_be_killed()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
