"""From names to sources: files with a digest, in a fixed order.

A path that exists is that path; #SPLIT after a folder chooses the files of a split. Files of a glob
or folder are sorted bytewise, so that document ids never depend on the disk.
"""

import glob
import os
import re
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash

from ..config.checks import kind_of_rows
from ..config.grammar import Carried as CarriedOption
from ..config.grammar import count_of, share_of
from ..config.options import BuildConfig
from ..schemas.files import FormatError, file_digest, saved_files
from ..support.errors import ConfigError, InputError, redacted
from ..support.progress import Progress
from .reading import state_of
from .rows import columns_of, template_parts
from .types import ENDINGS, Carried, Ids, Kind, Raw, Rows, Source, Text, format_of, known_format

_SPLITS = {"train": "train", "training": "train", "test": "test", "validation": "validation"}
_SPLITS |= {"valid": "validation", "val": "validation", "dev": "validation", "eval": "test"}
_KEYS = ("path", "weight", "max_epochs", "limit", "text", "ids", "sample_by")
_TOKENS = {".idx": ".bin", ".offsets.npy": ".npy", ".label_mask.npy": ".npy", ".csv.gz": ".npy"}
"""Endings of files beside token files, and of those."""
_WINDOW, _MEMORY = 1 << 27, 600_000_000  # bytes of a usual window, and of a process without one


class Entry(NamedTuple):
    """One entry of `sources`: its paths, and the options that it has of its own."""

    paths: tuple[str, ...]
    options: Mapping[str, Any]


def entries_of(config: BuildConfig) -> list[Entry]:
    """The entries of `sources`. Raises ConfigError for an unknown key, or a value that is wrong."""
    entries = []
    for source in config.sources:
        if not isinstance(source, Mapping):
            entries.append(Entry((str(source),), {}))
            continue
        paths = source.get("path")
        several = tuple(paths) if isinstance(paths, list | tuple) else (paths,)
        if not several or not all(isinstance(path, str) and path for path in several):
            raise ConfigError(f"a source has path {paths!r}; expected a file, or a list of files")
        for key, value in source.items():
            if key not in _KEYS:
                raise ConfigError(
                    f"source {several[0]} has the unknown key {key!r}, expected one of "
                    f"{', '.join(_KEYS)}"
                )
            if key == "limit" and (count_of(value) or 0) < 1:
                raise ConfigError(f"source {several[0]}: limit is {value}, expected at least 1")
            if key in ("weight", "max_epochs"):
                if (share_of(value) or 0) <= 0:
                    raise ConfigError(
                        f"source {several[0]}: {key} is {value}, expected a number above 0"
                    )
                raise ConfigError(f"{key} of a source is not there yet in this edition")
        entries.append(Entry(several, source))
    return entries


def resolve(
    config: BuildConfig,
    vocab_size: int,
    split_at: tuple[str, int] | None,
    scratch: Path,
    progress: Progress,
    digests: bool = True,
) -> list[Source]:
    """All sources of a build, each with its digest and how its rows are read.

    vocab_size, split_at: see `Ids`. scratch: folder for a copy of standard input. digests: read
    all files for their digests. Raises InputError for a name that means nothing.
    """
    sources: list[Source] = []
    seen: set[tuple[int, int]] = set()
    again: list[str] = []
    for number, entry in enumerate(entries_of(config)):
        own = {
            "rows": rows_of(config, entry.options, vocab_size, split_at),
            "entry": number,
            "limit": count_of(entry.options.get("limit")),
            "window": max(_WINDOW, min(1 << 31, config.memory - _MEMORY)),
        }
        for name in entry.paths:
            for shown, paths in _files(name, config.output, scratch, progress):
                source = _source(len(sources), shown, paths, own)
                facts = paths[0].stat()
                if (place := (facts.st_dev, facts.st_ino)) in seen:
                    again.append(source.name)
                    continue
                seen.add(place)
                sources.append(source)
    if again:
        others = f", and {len(again) - 1:,} others" if len(again) > 1 else ""
        progress.say(f"{again[0]} is named twice, and read once{others}")
    if digests:
        with ThreadPoolExecutor(8) as pool:
            sources = list(pool.map(_digested, sources))
    firsts = {source.entry: source for source in reversed(sources)}
    known = {entry: _checked(source, config) for entry, source in sorted(firsts.items())}
    return [
        replace(each, rows=known[each.entry].rows, carried=known[each.entry].carried)
        for each in sources
    ]


def rows_of(
    config: BuildConfig,
    options: Mapping[str, Any],
    vocab_size: int,
    split_at: tuple[str, int] | None,
) -> Rows:
    """How the rows of a source are read. options: those that the source has of its own."""
    kind = kind_of_rows(config)
    if "ids" in options or kind == "ids":
        column, _, labels = str(options.get("ids") or config.ids or "input_ids").partition(",")
        labels, _, label_kind = labels.partition(":")
        if label_kind not in ("", "labels", "mask"):
            raise ConfigError(f"--ids is {config.ids!r}, expected COLUMN,LABELS:labels or :mask")
        return Ids(
            column=column,
            labels=labels or None,
            kind=label_kind or None,
            split_at=split_at,
            vocab_size=vocab_size,
        )
    if kind == "text":
        template = str(options.get("text") or config.text or "text")
        template_parts(template)
        sample_by = options.get("sample_by", "document")
        if sample_by not in ("document", "paragraph", "line"):
            raise ConfigError(f"sample_by is {sample_by!r}, expected document, paragraph or line")
        return Text(template=template, sample_by=sample_by, truncate_at=config.truncate_at)
    raise ConfigError(f"--{kind} is not there yet in this edition")


def _files(
    name: str, output: str, scratch: Path, progress: Progress
) -> Sequence[tuple[str, Sequence[Path]]]:
    """The files that a name means: those of each source, after its name in messages."""
    if name == "-":
        return [("standard input", [_spooled(scratch)])]
    if name.startswith("hub:"):
        return [(name, _from_hub(name))]
    place, _, split = name.partition("#") if not os.path.lexists(name) else (name, "", "")
    path = Path(place)
    try:
        if path.is_dir() and any((path / f).exists() for f in ("state.json", "dataset_dict.json")):
            return [_saved(path, split)]
        if path.is_dir():
            files = _of_split(_walked(path, output), path, split, progress)
        elif os.path.lexists(place):
            files = [path]
        elif Path(f"{place}.idx").is_file():  # Megatron names both files by what they share
            files = [Path(f"{place}.idx")]
        elif glob.has_magic(place):
            names = sorted(glob.glob(place, recursive=True), key=os.fsencode)
            found = [Path(each) for each in names if not Path(each).is_dir()]
            if not found:
                raise InputError(f"no file matches {place}; check the pattern")
            root = Path(re.split(r"[*?[]", place)[0] + "x").parent
            files = _of_split(found, root, split, progress)
        else:
            raise InputError(
                f"there is no file {place}; check the path (a dataset of the hub is hub:ORG/SET)"
            )
    except OSError as error:
        raise InputError(f"{error.filename or name} cannot be read: {error.strerror}") from None
    files = list(dict.fromkeys(map(_tokens_of, files)))
    return [(str(file), [file]) for file in files]


def _walked(path: Path, output: str) -> list[Path]:
    """Files of a known format in a folder, sorted bytewise, without those of the output."""
    own = {Path(output + end).absolute() for end in ("", ".incomplete", ".replaced") if output}

    def stop(error: OSError) -> None:  # os.walk would skip the folder
        raise error

    files: list[Path] = []
    for folder, subfolders, names in os.walk(path, onerror=stop):
        shown = [name for name in subfolders if not name.startswith(".")]
        subfolders[:] = [name for name in shown if Path(folder, name).absolute() not in own]
        files += [
            Path(folder, name)
            for name in names
            if not name.startswith(".") and known_format(name)[0]
        ]
    if not files:
        raise InputError(f"{path} holds no file of a known format; expected {_endings()}")
    return sorted(files, key=os.fsencode)


def _endings() -> str:
    return ", ".join(f".{ending}" for ending in ENDINGS)


def _of_split(files: Sequence[Path], root: Path, asked: str, progress: Progress) -> list[Path]:
    """The files of the split that is asked for; InputError if several are there and none is."""
    of = {file: split_name(file, root) for file in files}
    named = sorted({*of.values()} - {""})
    if asked:
        wanted = {_SPLITS.get(word, word) for word in asked.split("+")}
        files = [file for file in files if of[file] in wanted]
        if not files:
            raise InputError(
                f"{root} has no files of {asked!r}; it has {', '.join(named) or 'none'}"
            )
    elif len(named) > 1:
        raise InputError(
            f"{root} has files of several splits: {', '.join(named)}; name one, such as "
            f"{root}#{named[0]}, or all: {root}#{'+'.join(named)}"
        )
    full = [file for file in files if file.stat().st_size]
    if not full:
        raise InputError(f"{root} has empty files only; expected at least one document")
    if empty := len(files) - len(full):
        progress.say(f"{root}: {empty:,} empty file{'s are' if empty > 1 else ' is'} passed over")
    return full


def split_name(path: Path, root: Path) -> str:
    """Split that the name of a file or of its folders says; "" for none.

    A word counts alone, or apart from the rest by other signs than letters.
    """
    *folders, name = path.relative_to(root).parts
    words = re.findall("[A-Za-z]+", " ".join([name.split(".")[0], *folders]))
    return next((_SPLITS[word.lower()] for word in words if word.lower() in _SPLITS), "")


def _tokens_of(path: Path) -> Path:
    """The token file that a file is beside; others unchanged."""
    for ending, tokens in _TOKENS.items():
        other = path.with_name(path.name.removesuffix(ending) + tokens)
        if path.name.endswith(ending) and other.is_file():
            return other
    return path


def _saved(path: Path, split: str) -> tuple[str, list[Path]]:
    """Name and files of a saved dataset, or of a split of one."""
    if (path / "dataset_dict.json").exists():
        splits = sorted(child.name for child in path.iterdir() if (child / "state.json").exists())
        chosen = split or (splits[0] if len(splits) == 1 else "")
        if chosen not in splits:
            named = ", ".join(f"{path}#{name}" for name in splits)
            raise InputError(f"{path} has several splits; name one: {named}")
        path = path / chosen
    try:
        return str(path), saved_files(path)
    except FormatError as error:
        raise InputError(str(error)) from None


def _spooled(scratch: Path) -> Path:
    scratch.mkdir(parents=True, exist_ok=True)
    path = scratch / "stdin.jsonl"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def _from_hub(name: str) -> list[Path]:
    """The Arrow files of hub:ORG/SET[:NAME][@REVISION][#SPLIT], in the cache of `datasets`."""
    match = re.fullmatch(r"hub:([^:@#]+)(?::([^:@#]+))?(?:@([^#]+))?(?:#(.+))?", name)
    if match is None:
        raise InputError(f"{name} is no dataset; expected hub:ORG/SET[:NAME][@REVISION][#SPLIT]")
    import datasets

    dataset, subset, revision, split = match.groups()
    try:
        loaded: Any = datasets.load_dataset(
            dataset, subset, split=split or "train", revision=revision
        )
    except Exception as error:  # the loaders and the hub client raise many kinds
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"no dataset {name} came from the hub: {reason}; check the name") from None
    if loaded._indices is not None:
        loaded = loaded.flatten_indices()
    return [Path(file["filename"]) for file in loaded.cache_files]


def _source(number: int, name: str, paths: Sequence[Path], own: Mapping[str, Any]) -> Source:
    """A source without its digest. own: fields that the sources of an entry share."""
    shown, (kind, compression) = redacted(name), known_format(paths[0].name)
    if not kind:
        raise InputError(f"{shown} is of no known format; expected {_endings()}, also .gz and .zst")
    try:
        if not all(stat.S_ISREG(path.stat().st_mode) for path in paths):
            raise InputError(
                f"{shown} is not a regular file; to read a pipe use - for standard input"
            )
        beside = format_of(kind).beside
        if beside is not None and not isinstance(own["rows"], Ids):
            raise InputError(
                f"{shown} holds token ids, and this build reads text; give --ids input_ids, or "
                "name other files"
            )
        files = [*map(str, paths), *(beside(str(paths[0])) if beside is not None else ())]
        state = state_of(files)
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror}") from None
    if not sum(size for size, _ in state):
        raise InputError(f"{shown} is empty; expected at least one document")
    return Source(
        number=number,
        name=shown,
        paths=tuple(files),
        format=kind,
        compression=compression,
        bytes=sum(size for size, _ in state),
        digest="",
        state=state,
        **own,
    )


def _digested(source: Source) -> Source:
    """The source with the digest of its content."""
    try:
        digests = [file_digest(Path(path), xxhash.xxh3_128) for path in source.paths]
    except OSError as error:
        raise InputError(f"{source.name} cannot be read: {error.strerror}") from None
    if len(digests) > 1:
        digests = [xxhash.xxh3_128_hexdigest(" ".join(digests).encode())]
    return replace(source, digest=digests[0])


def _checked(source: Source, config: BuildConfig) -> Source:
    """A source with the kind of its labels and the types of carried columns.

    Its first rows say them. Raises InputError if they lack a column that is read.
    """
    carried = [CarriedOption.parse(each) for each in config.carry]
    columns = columns_of(source, config.group)
    unknown = [each.name for each in carried]
    if isinstance(source.rows, Ids) and source.rows.labels and not source.rows.kind:
        unknown += [source.rows.column, source.rows.labels]
    columns |= dict.fromkeys(unknown, Kind(()))
    first = next(format_of(source.format).read(source, 0, -1, columns), None)
    if first is None:
        return source  # which has no rows: reading it says so
    _check_names(source, columns, first)
    rows = source.rows
    if isinstance(rows, Ids) and rows.labels and not rows.kind:
        rows = replace(rows, kind=_label_kind(source, rows, first.table))
    types = [_carried(source, each, first.table[each.name]) for each in carried]
    return replace(source, rows=rows, carried=tuple(types))


def _check_names(source: Source, columns: Mapping[str, Kind], first: Raw) -> None:
    """Raise InputError unless each of these columns is there once."""
    names = first.names or first.table.column_names
    for name in columns:
        if names.count(name) > 1:
            raise InputError(f"{source.name} has more than one column {name!r}; rename one")
        is_null = name in first.table.column_names and first.table[name].null_count == len(
            first.table
        )
        if name not in names and is_null and not first.problems:
            raise InputError(
                f"{source.name} has no column {name!r}; it has {', '.join(names) or 'no columns'}"
            )


def _label_kind(source: Source, rows: Ids, table: pa.Table) -> str:
    """labels or mask, as the first rows with values say."""
    labels, ids = (
        {value for row in table[name].to_pylist() for value in row or ()}
        for name in (str(rows.labels), rows.column)
    )
    if any(isinstance(value, bool) for value in labels):
        return "mask"
    if not labels <= {0, 1}:
        return "labels"
    if not ids <= {0, 1} or not labels:
        return "mask"
    raise InputError(
        f"{source.name} has only 0 and 1 in {rows.labels!r} and in its token ids, so it may be "
        f"labels or a mask; give --ids {rows.column},{rows.labels}:labels or :mask"
    )


def _carried(source: Source, asked: CarriedOption, column: Any) -> Carried:
    """The type of a carried column in the first rows."""
    found: Any = column.type
    kind = getattr(found, "value_type", found)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        shown = "no value" if pa.types.is_null(kind) else str(found)
        raise InputError(
            f"{source.name} has {shown} in {asked.name!r} in its first rows, expected numbers or "
            "lists of numbers to carry"
        )
    is_list = kind is not found
    if is_list and not isinstance(source.rows, Ids):
        raise InputError(
            f"{source.name} has lists in {asked.name!r}: a value for each token needs the tokens "
            "it belongs to, so add --ids, or carry a plain number"
        )
    stored = {"bool": "int8", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
    stored |= {"halffloat": "float32", "double": "float32", "float": "float32"}
    return Carried(asked.name, is_list, asked.type or stored.get(str(kind), str(kind)))
