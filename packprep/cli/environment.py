"""Facts for a bug report: versions, machine, engines, settings. No names, paths or secrets."""

import importlib.metadata
import os
import platform
import sys
from typing import Any

from packprep.engines.guard import Guard
from packprep.engines.known_guards import known_guards
from packprep.support.limits import usable_cores, usable_memory
from packprep.support.linux import processor
from packprep.support.version import __version__

_PACKAGES = (
    "click",
    "datasets",
    "numba",
    "numpy",
    "pyarrow",
    "pyyaml",
    "rich",
    "tokenizers",
    "zstandard",
    "fastokens",
    "gigatoken",
    "huggingface_hub",
    "ray",
    "s3fs",
    "torch",
    "flash-attn",
    "transformers",
    "trl",
)
_ENGINES = ("fastokens", "gigatoken")
# Environment variables that change a build. No others are read: a variable may hold a secret.
_SETTINGS = (
    "RAYON_NUM_THREADS",
    "TOKENIZERS_PARALLELISM",
    "NUMBA_NUM_THREADS",
    "NUMBA_DISABLE_JIT",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "ARROW_DEFAULT_MEMORY_POOL",
    "HF_HUB_OFFLINE",
    "HF_DATASETS_OFFLINE",
    "PYTHONHASHSEED",
    "PYTHONUTF8",
    "LANG",
    "LC_ALL",
    "NO_COLOR",
)


def environment() -> dict[str, Any]:
    """Versions by package, the machine, and settings of the environment.

    A version is None if the package is not installed. guards: numbers of characters that go to
    `tokenizers`, by models, for the installed engines.
    """
    cores, memory = usable_cores(), usable_memory()
    return {
        "packprep": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "machine": {
            "cores": os.cpu_count(),
            "usable_cores": cores.value,
            "cores_from": cores.source,
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "usable_memory_bytes": memory.value,
            "memory_from": memory.source,
            "sha256": _sha256_in_hardware(),
        },
        "packages": {name: _version(name) for name in _PACKAGES},
        "guards": _guards(),
        "settings": {
            name: value for name in _SETTINGS if (value := os.environ.get(name)) is not None
        },
        "encoding": {"filesystem": sys.getfilesystemencoding(), "stdout": sys.stdout.encoding},
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _guards() -> dict[str, str]:
    guards = {}
    for entry in known_guards():
        counts = [
            f"{name} {len(Guard.from_text(entry['guards'][engine])):,}"
            for name in _ENGINES
            if (engine := f"{name} {_version(name)}") in entry["guards"]
            and entry["tokenizers"] == _version("tokenizers")
        ]
        if counts:
            guards[entry["models"]] = f"characters to tokenizers: {', '.join(counts)}"
    return guards


def _sha256_in_hardware() -> bool | None:
    """True if the processor has instructions for SHA-256, which is three times as fast.

    None if that is unknown.
    """
    features = processor()
    return None if features is None else "sha_ni" in features or "sha2" in features
