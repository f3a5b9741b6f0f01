"""Compiled kernels on disk: one file for each kernel, its types, and the processor.

Folders, in this order: `__pycache__` beside the kernel's module, then the user's cache folder; if
NUMBA_CACHE_DIR is set, that folder alone. A kernel is read from the first that has it, and written
to the first that can be written. So an image in which one build ran may be read-only, and a machine
without any folder to write compiles in each process. numba's own cache takes no folder that it
cannot write, and does not see that a function in another file changed.
"""

import hashlib
import pickle
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from ...support.limits import cache_folder, keep

_DIGEST = 32  # bytes of a sha256


class KernelCache(NullCache):  # type: ignore[misc,unused-ignore]
    """The files of one kernel; numba's dispatcher calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        source = Path(function.__code__.co_filename)
        self._name = f"{function.__module__}.{function.__name__}"
        self._folders, self._stamp = cache_folders(source), _stamp(source)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The kernel of a signature; None if no folder has it.

        The context is made ready to load. To make it ready to compile would import numba's numpy
        and every installed package that extends numba, 0.2 to 0.4 seconds.
        """
        rtsys.initialize(target_context)
        name = self._file(sig, target_context.codegen())
        for folder in self._folders:
            try:
                data = (folder / name).read_bytes()
            except OSError:
                continue
            if self._signed(content := data[_DIGEST:]) == data:  # not cut short, not of other code
                return CompileResult._rebuild(target_context, *pickle.loads(content))
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write a compiled kernel to the first folder that can be written."""
        name, content = self._file(sig, data.codegen), self._signed(dumps(data._reduce()))
        for folder in self._folders:
            if keep(folder / name, content):
                return

    def _signed(self, content: bytes) -> bytes:
        """Content of a file: a digest of the code and the kernel, and the kernel."""
        return hashlib.sha256(self._stamp + content).digest() + content

    def _file(self, sig: Any, codegen: Any) -> str:
        key = (sig, codegen.magic_tuple(), sys.implementation.cache_tag, config.BOUNDSCHECK)
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        return f"{self._name}-{digest[:16]}.kernel"


def cache_folders(source: Path) -> list[Path]:
    """Folders for the compiled kernels of a module, in the order to try."""
    if config.CACHE_DIR:
        return [Path(config.CACHE_DIR)]
    return [source.parent / "__pycache__", cache_folder("kernels")]


@lru_cache
def _stamp(source: Path) -> bytes:
    """Digest of numba and of all code that a kernel of this module may consist of."""
    digest = hashlib.sha256(numba.__version__.encode())
    for path in (*sorted(Path(__file__).parent.glob("*.py")), source):
        digest.update(path.read_bytes())
    return digest.digest()
