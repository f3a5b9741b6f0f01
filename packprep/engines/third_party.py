"""Environment variables and allocator settings for libraries, set before they are imported."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

from packprep.config.build_config import BuildConfig
from packprep.support.linux import limit_arenas

# Threads of `tokenizers` are ours (see engines.py), those of numpy would be busy waiting for
# matrices, `datasets` need not load torch, nor say our errors a second time.
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "OPENBLAS_NUM_THREADS": "1",
    "USE_TORCH": "0",
    "DATASETS_VERBOSITY": "critical",
    "RUST_BACKTRACE": "0",
}
_BPE = re.compile(rb'"model"\s*:\s*{\s*"type"\s*:\s*"BPE"')


def tell_libraries(**more: str) -> None:
    """Set what the environment does not say. Libraries read it when they are first imported."""
    for name, value in (_ENVIRONMENT | more).items():
        os.environ.setdefault(name, value)


def share_machine(config: BuildConfig) -> None:
    """Threads of the tokenizer follow `num_proc`, and one allocator serves all.

    What one part frees the next takes.

    An allocator of Arrow's own was a sixth more memory at four times the text.
    """
    import pyarrow as pa

    os.environ.setdefault("RAYON_NUM_THREADS", str(config.num_proc))
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())
    if "MALLOC_ARENA_MAX" not in os.environ:
        limit_arenas(arenas(config, config.num_proc))


def arenas(config: BuildConfig, cores: int) -> int:
    """Arenas of glibc's malloc for a process that uses so many cores.

    One for every thread was a third more memory. Only `tokenizers` makes so many small pieces that
    threads which share one wait for each other, up to two thirds of the time: there each of the
    three kinds of threads that a build has for a core gets its own, and so do the main one and
    those that load.
    """
    return max(2, cores) if is_fast(config) else 4 * cores + 4


def is_fast(config: BuildConfig) -> bool:
    """True if the engine will be fastokens, as far as known before it is loaded: it reads BPE."""
    if config.engine != "auto" or find_spec("fastokens") is None:
        return config.engine == "fastokens"
    path = Path(str(config.tokenizer))
    try:
        return (
            _BPE.search((path / "tokenizer.json" if path.is_dir() else path).read_bytes())
            is not None
        )
    except OSError:
        return True  # of the hub, most likely BPE
