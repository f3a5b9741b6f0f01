"""The output directory: absent or complete. A build works in OUT.incomplete beside it, and one rename makes it OUT."""

import ctypes
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from packprep.config import BuildConfig
from packprep.errors import ConfigError
from packprep.schemas import MANIFEST, Manifest, digest_of, read_manifest, sync_directory
from packprep.staging import PARTS, difference


def output_of(config: BuildConfig) -> Path:
    """Where to build. Raises ConfigError where that cannot be a directory."""
    if not config.output:
        raise ConfigError("no output is given; add -o with the directory to write")
    output = Path(config.output)
    if output.is_symlink() or (output.exists() and not output.is_dir()):
        raise ConfigError(f"{output} is not a directory; choose another -o")
    return output


def already_built(output: Path, inputs: dict[str, Any], config: BuildConfig) -> Manifest | None:
    """The manifest of an output of the same inputs; None where there is none to keep; ConfigError for any other."""
    if not output.exists() or not any(output.iterdir()):
        return None
    if not (output / MANIFEST).exists():
        raise ConfigError(f"{output} exists and is not an output of packprep; choose another -o")
    manifest = read_manifest(output)
    if manifest.identity == digest_of(inputs):
        return manifest
    if config.overwrite:
        return None
    changed = difference({"inputs": manifest.data["inputs"]}, {"inputs": inputs})
    raise ConfigError(f"{output} was built with other settings ({changed}); choose another -o, or --overwrite")


def publish(staging: Path, output: Path) -> None:
    """Take away what is not part of the output; one rename makes it appear. Until then an old one stays in its place.

    May be called again after it was interrupted anywhere.
    """
    for name in PARTS:
        if (path := staging / name).is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    sync_directory(staging)
    replaced = _replaced(output)
    if output.exists():
        shutil.rmtree(replaced, ignore_errors=True)
    if output.exists() and _exchanged(staging, output):
        staging.rename(replaced)  # at once not taken for work that can go on
    else:
        if output.exists():
            output.rename(replaced)
        staging.rename(output)
    sync_directory(output.parent)
    remove_replaced(output)


def remove_replaced(output: Path) -> None:
    """Delete an old output; the new one stands in its place."""
    shutil.rmtree(_replaced(output), ignore_errors=True)


def _replaced(output: Path) -> Path:
    return output.with_name(output.name + ".replaced")


def _exchanged(one: Path, other: Path) -> bool:
    """Swap two directories at once, so that readers always find one of them; False where the system can't."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    at_cwd, exchange = -100, 2
    return rename is not None and rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0
