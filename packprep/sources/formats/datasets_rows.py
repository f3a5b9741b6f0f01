"""Rows of datasets in files of `datasets` itself: written by `save_to_disk`, or from the hub."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from packprep.config.grammar.source_names import HubPart, hub_name
from packprep.schemas.canonical import parse_json
from packprep.schemas.errors import FormatError
from packprep.schemas.files import check_path
from packprep.sources.formats.format import Format, Input, LocalPath, Wanted, tables_in
from packprep.support.errors import InputError
from packprep.support.hub import asking


def open_hub(name: str, part: HubPart) -> Any:
    """The hub dataset, in the cache that `datasets` keeps for the user.

    part: what is read if the name does not say it.
    """
    import datasets

    dataset, own = hub_name(name) or (name, part)
    split, subset, revision = own.or_else(part)
    unreachable = ""
    try:
        with asking(dataset, "README.md", revision=revision, repo_type="dataset") as unreachable:
            return datasets.load_dataset(dataset, subset, split=split or "train", revision=revision)
    except Exception as error:  # the loaders and the hub client raise many kinds
        reason = unreachable or " ".join(str(error).split())[:200]
        raise InputError(
            f"{name} is no local path and no dataset came from the hub: {reason}"
        ) from None


def chosen_split(where: str, splits: Sequence[str], asked: str | None) -> str:
    """The split to read of a saved DatasetDict. Raises InputError if it is not known which one."""
    split = asked or (splits[0] if len(splits) == 1 else None)
    if split is None or split not in splits:
        has = f"no split {asked!r}" if asked else "several splits"
        named = ", ".join(f"{where}/{name}" for name in splits)
        raise InputError(f"{where} has {has}; name the folder of one: {named}")
    return split


def data_files(state: bytes, where: str, dataset: str, asked: str | None = None) -> list[str]:
    """Names of the data files of a saved dataset.

    state: content of its state.json. where, dataset: names of both, for messages. asked: the split
    that the user asks for, of a dataset that is no DatasetDict. Raises InputError.
    """
    try:
        parsed = parse_json(state)
        names = [str(check_path(entry["filename"], where)) for entry in parsed["_data_files"]]
        split = parsed.get("_split")
    except FormatError as error:
        raise InputError(str(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InputError(
            f"{where} lists no data files; expected what save_to_disk writes"
        ) from None
    if asked not in (None, split):
        raise InputError(f"{dataset} is one dataset, of split {split}; leave the split out")
    return names


def _hub_tables(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    return tables_in(open_hub(source.name, source.part))


def _saved_tables(source: Input, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    import datasets

    return tables_in(datasets.load_from_disk(str(path)))


def _columns(source: Input, path: LocalPath) -> None:
    """None: every table has all columns."""


def _count_hub(source: Input) -> int:
    return len(open_hub(source.name, source.part))


def _count_saved(source: Input) -> int | None:
    import datasets

    return None if source.is_remote else len(datasets.load_from_disk(str(source.path)))


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
