"""malloc in huge pages, where the system has them.

10 % fewer cycles for a build with a fast engine.

glibc takes that from the environment, and only when a process begins; so the process begins once
more, under the same number, before it has imported anything.
"""

import contextlib
import os
import sys
from pathlib import Path

# "always [madvise] never": what is in brackets holds. With `always` malloc has them already, with
# `never` nobody has.
_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_COMMANDS = {"build", "plan"}  # those that tokenize


def begin_again() -> None:
    """Begin this process again with huge pages, if there are any.

    Not where the user has set tunables of glibc.
    """
    if "GLIBC_TUNABLES" in os.environ or _COMMANDS.isdisjoint(sys.argv[1:2]):
        return
    with contextlib.suppress(OSError):  # not Linux, or a process may not begin again: then without
        if "[madvise]" in _ENABLED.read_text():
            tuned = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], tuned)
