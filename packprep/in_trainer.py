"""Packed data by one line of a training script, built once for all processes that share a cache.

The first process builds, and the others wait for it; if it dies, the next one resumes its work.

    CACHE/NAME       a finished output; NAME is a digest of all that decides its bytes
    CACHE/NAME-TO    the same in the format of another trainer
    CACHE/digests    digests of sources by their sizes and times: a second start reads no source
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config.options import BuildConfig
from .exports.export import check_format, export
from .run.build import make
from .run.job import make_job
from .schemas.files import digest_of
from .support.errors import ConfigError
from .support.limits import cache_folder, locked
from .support.progress import Console, Silent

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from .loaders import PackedShards

_Source = str | os.PathLike[str] | Mapping[str, Any]
_Sources = _Source | Sequence[_Source]


def dataset(sources: _Sources, tokenizer: Any = None, **options: Any) -> "Dataset | DatasetDict":
    """Return the packs of sources, with the columns that TRL and transformers train on.

    They are built by the first of all processes that share the cache, and opened by the others and
    by later runs. With `holdout` they are a DatasetDict.

    sources, tokenizer, options: those of BuildConfig; the tokenizer may be that of the trainer.
    cache_dir, another option: the folder that has the outputs of all calls; by default that of
    PACKPREP_CACHE, else a folder in the user's cache. Raises ConfigError, InputError or
    StoppedError, as `build`.
    """
    from datasets import load_from_disk

    return load_from_disk(str(prepared(sources, tokenizer, **{"columns": "hf"} | options)))


def shards(sources: _Sources, tokenizer: Any = None, **options: Any) -> "PackedShards":
    """Return the packs of sources for PackedLoader.

    options: see `dataset`; and split: "train" or "validation", needed with `holdout`.
    """
    from .loaders import PackedShards

    split = options.pop("split", None)
    return PackedShards(prepared(sources, tokenizer, **options), split=split)


def prepared(
    sources: _Sources, tokenizer: Any = None, *, to: str | None = None, **options: Any
) -> Path:
    """Return the folder of the packs of sources, for trainers that take a path; see `dataset`.

    to: a format of `packprep export` for it, such as "llama-factory".
    """
    if to is not None:
        check_format(to)
    place = options.pop("cache_dir", None) or os.environ.get("PACKPREP_CACHE")
    cache = Path(place or cache_folder("in_trainer")).expanduser().absolute()
    listed = [sources] if isinstance(sources, str | os.PathLike | Mapping) else [*sources]
    read = [dict(each) if isinstance(each, Mapping) else os.fspath(each) for each in listed]
    given: Any = {"sources": read, "tokenizer": tokenizer, **options}
    config = BuildConfig(output=str(cache / "output"), **given)
    if "-" in read:
        raise ConfigError("standard input can be read only once; give files")
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the cache {cache} cannot be made: {error.strerror}; choose another cache_dir, or "
            "PACKPREP_CACHE"
        ) from None
    began, digests = time.monotonic(), cache / "digests"
    with _turn(cache / f"sources-{digest_of(str(read))[:24]}"):
        job = make_job(config, Silent(), digests=digests)
    folder = cache / job.identity[:24]
    wanted = folder if to is None else folder.with_name(f"{folder.name}-{to}")
    if wanted.is_dir():
        return wanted
    with _turn(folder.with_suffix(".turn")):
        if not folder.is_dir():
            progress = Console()
            try:
                named = replace(config, output=str(folder))
                make(make_job(named, progress, digests=digests), progress, began)
                progress.say(f"packprep: built {folder}")
            finally:
                progress.close()
        if to is not None and not wanted.is_dir():
            export(str(folder), to, str(wanted))
    return wanted


def _turn(path: Path) -> AbstractContextManager[None]:
    """Wait until no other process has the lock of this name; a cache may be one to read only."""
    if not os.access(path.parent, os.W_OK):
        return nullcontext()
    return locked(path, f"{path} is used", waits=True)
