"""Files of a folder or glob that are empty: passed over with a note, as filters leave some behind.

A file that is named by itself is refused instead, and so is a name with empty files only.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

_File = TypeVar("_File")


def without_empty(
    files: Mapping[str, _File],
    where: str,
    is_empty: Callable[[_File], bool],
    say: Callable[[str], None],
) -> list[_File]:
    """The files that are not empty; none if all are. Those that are left out are said.

    files: by name. where: the folder or glob.
    """
    full = {name: file for name, file in files.items() if not is_empty(file)}
    empty = [name for name in files if name not in full]
    if full and empty:
        others = f" and {len(empty) - 1:,} more" if len(empty) > 1 else ""
        say(
            f"{where}: empty files are passed over, {len(empty):,} of {len(files):,}: "
            f"{empty[0]}{others}"
        )
    return [*full.values()]
