"""Rows of datasets in files of `datasets` itself: written by `save_to_disk`, or from the hub."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from packprep.config.build_config import BuildConfig
from packprep.schemas.storage.stores import is_url
from packprep.sources.formats.format import Format, Input, LocalPath, Wanted, tables_in
from packprep.support.errors import InputError
from packprep.support.hub import asking


def open_hub(name: str, config: BuildConfig) -> Any:
    """The hub dataset, in the cache that `datasets` keeps for the user."""
    import datasets

    split, unreachable = config.split or "train", ""
    try:
        with asking(
            name, "README.md", revision=config.revision, repo_type="dataset"
        ) as unreachable:
            return datasets.load_dataset(name, config.name, split=split, revision=config.revision)
    except Exception as error:  # the loaders and the hub client raise many kinds
        reason = unreachable or " ".join(str(error).split())[:200]
        raise InputError(
            f"{name} is no local path and no dataset came from the hub: {reason}"
        ) from None


def _hub_tables(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    return tables_in(open_hub(source.name, wanted.config))


def _saved_tables(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    import datasets

    return tables_in(datasets.load_from_disk(str(path)))


def _columns(source: Input, path: LocalPath) -> None:
    """None: every table has all columns."""


def _count_hub(source: Input, config: BuildConfig) -> int:
    return len(open_hub(source.name, config))


def _count_saved(source: Input, config: BuildConfig) -> int | None:
    import datasets

    return None if is_url(source.path or "") else len(datasets.load_from_disk(str(source.path)))


SAVED = Format(
    name="saved",
    columns=_columns,
    tables=_saved_tables,
    count=_count_saved,
    is_folder=True,
    options=frozenset({"split"}),
)
HUB = Format(
    name="hub",
    columns=_columns,
    tables=_hub_tables,
    count=_count_hub,
    options=frozenset({"name", "revision", "split"}),
)
