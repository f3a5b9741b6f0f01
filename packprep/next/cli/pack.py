"""`packprep pack`."""

from typing import Any

from ..run.build import pack
from ..support.progress import Console
from .options import command as make
from .options import config_of, progress_of
from .printing import print_output

_OPTIONS = (
    *("output", "overwrite", "max_length", "strategy", "overflow", "stride"),
    *("min_document_tokens", "max_document_tokens", "min_pack_tokens", "max_segments"),
    *("pad_to_multiple", "order", "seed", "epoch", "weights", "max_tokens", "multiple"),
    *("holdout", "after", "columns", "executor", "num_proc", "part"),
)


def run(config_file: str | None, quiet: bool, **given: Any) -> None:
    """Pack, and print the closing table."""
    config = config_of(given, config_file)
    progress = progress_of(quiet)
    try:
        output = pack(config, progress=progress)
    finally:
        if isinstance(progress, Console):
            progress.close()
    if not quiet:
        print_output(output)


command = make(
    "pack",
    run,
    _OPTIONS,
    """Pack the tokens of stores: the bytes that `packprep build` would write.

    Example: packprep pack tokens -o packed --max-length 8192
    """,
)
