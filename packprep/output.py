"""The output directory: absent or complete. A build works in OUT.incomplete beside it, and one rename makes it OUT."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from packprep.config import BuildConfig
from packprep.errors import ConfigError, PackprepError
from packprep.progress import Progress
from packprep.schemas import MANIFEST, Manifest, digest_of, read_manifest, sync_directory

STAGING_SUFFIX = ".incomplete"


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
    changed = _difference(manifest.data["inputs"], inputs)
    raise ConfigError(f"{output} was built with other settings ({changed}); choose another -o, or --overwrite")


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    options = {key for part in (old, new) for key in part["options"]}
    changed = [
        f"{key} {was!r} there, {now!r} here"
        for key in sorted(options)
        if (was := old["options"].get(key)) != (now := new["options"].get(key))
    ]
    changed += ["other sources"] if old["sources"] != new["sources"] else []
    changed += ["another tokenizer"] if old["tokenizer"] != new["tokenizer"] else []
    return "; ".join(changed)


@contextmanager
def staged(output: Path, progress: Progress) -> Iterator[Path]:
    """The staging directory, new. It goes away again but where an interruption or the system stopped the build."""
    staging = output.with_name(output.name + STAGING_SUFFIX)
    if staging.exists():
        progress.say(f"{staging} is left from a build that did not finish: replaced")
        shutil.rmtree(staging)
    try:
        (staging / "scratch").mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"{staging} cannot be made: {error.strerror}; choose another -o") from None
    try:
        yield staging
    except PackprepError:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    shutil.rmtree(staging, ignore_errors=True)


def publish(staging: Path, output: Path) -> None:
    """One rename makes the output appear; an old one steps aside only now."""
    sync_directory(staging)
    replaced = output.with_name(output.name + ".replaced")
    if output.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        output.rename(replaced)
    staging.rename(output)
    sync_directory(output.parent)
    shutil.rmtree(replaced, ignore_errors=True)
