"""Sources that are files of token ids, known by their names.

A build of such files needs no `input_ids_column`: it is then "input_ids".
"""

from collections.abc import Iterable
from pathlib import Path

TOKEN_ENDINGS = ("bin", "idx", "npy", "ds")
IDS_COLUMN = "input_ids"


def names_token_files(paths: Iterable[str]) -> bool:
    """True if a path is a file of token ids, or Megatron's name for a .bin and its .idx."""
    endings = tuple(f".{ending}" for ending in TOKEN_ENDINGS)
    return any(path.endswith(endings) or _is_prefix(path) for path in paths)


def _is_prefix(path: str) -> bool:
    try:
        return Path(f"{path}.idx").is_file() and not Path(path).exists()
    except OSError:  # a name that is too long; reading it says so
        return False
