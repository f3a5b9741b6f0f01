"""Files in the user's cache folder: slow to make, and no loss if they go."""

from pathlib import Path

import platformdirs

from ..schemas.files import write_file


def cache_folder(name: str) -> Path:
    """The folder of this name in the cache folder of the user, there or not."""
    return platformdirs.user_cache_path("packprep", appauthor=False) / name


def keep(path: Path, content: bytes) -> bool:
    """Write a file whole, and its folder if it is missing. False if that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content)
    except OSError:
        return False
    return True
