"""Environment variables and allocator settings for libraries, set before they are imported."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

from packprep.config.stages import Tokenizing
from packprep.support.linux import limit_arenas

# `tokenizers` gets its threads from backends.py. Threads of numpy would only spin. `datasets` need
# not load torch, nor log errors a second time.
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "OPENBLAS_NUM_THREADS": "1",
    "USE_TORCH": "0",
    "DATASETS_VERBOSITY": "critical",
    "RUST_BACKTRACE": "0",
}
_BPE = re.compile(rb'"model"\s*:\s*{\s*"type"\s*:\s*"BPE"')


def tell_libraries(**more: str) -> None:
    """Set variables that the environment lacks; libraries read them when they are imported."""
    for name, value in (_ENVIRONMENT | more).items():
        os.environ.setdefault(name, value)


def share_machine(num_proc: int, tokenizing: Tokenizing) -> None:
    """Use `num_proc` threads in the tokenizer, and one allocator for all libraries.

    With one allocator, each library reuses memory that another one freed. With Arrow's own
    allocator a build of four times the text took a sixth more memory.
    """
    import pyarrow as pa

    os.environ.setdefault("RAYON_NUM_THREADS", str(num_proc))
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    if "MALLOC_ARENA_MAX" not in os.environ:
        limit_arenas(arenas(tokenizing, num_proc))


def arenas(tokenizing: Tokenizing, cores: int) -> int:
    """Number of arenas of glibc's malloc for a process on this many cores.

    One for each thread took a third more memory. Only `tokenizers` allocates so many small blocks
    that threads with a shared arena wait for each other, up to two thirds of the time. With it,
    each thread gets its own: three kinds of threads for each core, the main thread and the threads
    that load.
    """
    return max(2, cores) if is_fast(tokenizing) else 4 * cores + 4


def is_fast(tokenizing: Tokenizing) -> bool:
    """True if the engine will be fastokens, as far as known before it is loaded: it reads BPE."""
    if tokenizing.engine != "auto" or find_spec("fastokens") is None:
        return tokenizing.engine == "fastokens"
    path = Path(str(tokenizing.tokenizer))
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        return _BPE.search(path.read_bytes()) is not None
    except OSError:
        return True  # from the hub, most likely BPE
