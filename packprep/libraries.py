"""What libraries are told before they are imported or begin to work: threads, one allocator, silence."""

import ctypes
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from packprep.config import BuildConfig

# Threads of `tokenizers` are ours (see engines.py), those of numpy would be busy waiting for matrices, `datasets` need
# not load torch, nor say our errors a second time.
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1", "USE_TORCH": "0",
    "DATASETS_VERBOSITY": "critical", "RUST_BACKTRACE": "0",
}  # fmt: skip
_M_ARENA_MAX = -8  # of glibc's mallopt
_BPE = re.compile(rb'"model"\s*:\s*{\s*"type"\s*:\s*"BPE"')


def tell_libraries(**more: str) -> None:
    """Set what the environment does not say. Libraries read it when they are first imported."""
    for name, value in (_ENVIRONMENT | more).items():
        os.environ.setdefault(name, value)


def share_machine(config: BuildConfig) -> None:
    """Threads of the tokenizer follow `num_proc`, and one allocator serves all: what one part frees the next takes.

    An arena of glibc for every thread was a third more, an allocator of Arrow's own a sixth at four times the text.
    Only `tokenizers` makes so many small pieces that threads which share an arena wait for each other, up to two thirds
    of the time: there each of the three kinds of threads that a build has for a core, and the main one, gets its own.
    """
    import pyarrow as pa

    os.environ.setdefault("RAYON_NUM_THREADS", str(config.num_proc))
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(_M_ARENA_MAX, max(2, config.num_proc) if is_fast(config) else 4 * config.num_proc + 4)


def is_fast(config: BuildConfig) -> bool:
    """Whether the engine will be fastokens, as far as can be told before it is loaded: it reads BPE."""
    if config.engine != "auto" or find_spec("fastokens") is None:
        return config.engine == "fastokens"
    path = Path(str(config.tokenizer))
    try:
        return _BPE.search((path / "tokenizer.json" if path.is_dir() else path).read_bytes()) is not None
    except OSError:
        return True  # of the hub, most likely BPE
