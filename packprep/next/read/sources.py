"""From names to sources: files with a digest, in a fixed order.

A path that exists is that path; #SPLIT after a folder chooses the files of a split. Files of a glob
or folder are sorted bytewise, so that document ids never depend on the disk.
"""

import glob
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
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
from ..schemas.errors import FormatError
from ..schemas.files import file_digest, saved_files
from ..support.errors import ConfigError, InputError, redacted
from ..support.progress import Progress
from .formats.jsonl import first_rows
from .formats.registry import FORMATS, format_of
from .rows import columns_of, template_parts
from .types import Carried, Ids, Rows, Source, Text, Wanted

STDIN = "standard input"
_SPLITS = {"train": "train", "training": "train", "test": "test", "validation": "validation"}
_SPLITS |= {"valid": "validation", "val": "validation", "dev": "validation", "eval": "test"}
_KEYS = ("path", "weight", "max_epochs", "limit", "text", "ids", "sample_by")


class Entry(NamedTuple):
    """One entry of `sources`: its paths, and the options that it has of its own."""

    paths: tuple[str, ...]
    options: Mapping[str, Any]


def entries_of(config: BuildConfig) -> list[Entry]:
    """The entries of `sources`. Raises ConfigError for an unknown key."""
    entries = []
    for source in config.sources:
        if not isinstance(source, Mapping):
            entries.append(Entry((str(source),), {}))
            continue
        paths = source.get("path")
        several = tuple(paths) if isinstance(paths, list | tuple) else (paths,)
        if not several or not all(isinstance(path, str) and path for path in several):
            raise ConfigError(f"a source has path {paths!r}; expected a file, or a list of files")
        for key in source:
            if key not in _KEYS:
                raise ConfigError(
                    f"source {several[0]} has the unknown key {key!r}, expected one of "
                    f"{', '.join(_KEYS)}"
                )
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
    seen: dict[tuple[int, int], str] = {}
    again: list[str] = []
    for number, entry in enumerate(entries_of(config)):
        paths: list[tuple[Path, str]] = []
        for name in entry.paths:
            for path, shown in _expanded(name, config.output, scratch, progress):
                facts = path.stat()
                if (place := (facts.st_dev, facts.st_ino)) in seen:
                    again.append(shown)
                    continue
                seen[place] = shown
                paths.append((path, shown))
        rows = rows_of(config, entry.options, vocab_size, split_at)
        limit = _amounts(entry)
        for path, shown in paths:
            source = _source(path, shown, rows)
            sources.append(replace(source, number=len(sources), entry=number, limit=limit))
    if again:
        others = f", and {len(again) - 1:,} others" if len(again) > 1 else ""
        progress.say(f"{again[0]} is named twice, and read once{others}")
    if digests:
        with ThreadPoolExecutor(8) as pool:
            sources = list(pool.map(_digested, sources))
    return _typed(sources, config)


def _amounts(entry: Entry) -> int | None:
    """The limit of an entry. Raises ConfigError for an amount that cannot work."""
    for key, least in (("limit", 1), ("weight", 0), ("max_epochs", 0)):
        value: Any = entry.options.get(key, 1)
        number = count_of(value) if key == "limit" else share_of(value)
        if number is None or number < least or not number:
            raise ConfigError(
                f"source {entry.paths[0]}: {key} is {value}, expected "
                f"{'at least 1' if least else 'a number above 0'}"
            )
        if key in ("weight", "max_epochs") and key in entry.options:
            raise ConfigError(f"{key} of a source is not there yet in this edition; leave it out")
    return count_of(entry.options.get("limit"))


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


def _expanded(
    name: str, output: str, scratch: Path, progress: Progress
) -> Iterator[tuple[Path, str]]:
    """Files that a name means, each with its name in messages."""
    if name == "-":
        yield _spooled(scratch), STDIN
        return
    if name.startswith("hub:"):
        yield from _from_hub(name)
        return
    place, _, split = name.partition("#") if not os.path.lexists(name) else (name, "", "")
    path = Path(place)
    try:
        if path.is_dir() and any((path / f).exists() for f in ("state.json", "dataset_dict.json")):
            files = _saved(path, split)
        elif path.is_dir():
            files = _of_split(_walked(path, output), place, split, progress)
        elif os.path.lexists(place):
            files = [_tokens_of(path)]
        elif Path(f"{place}.idx").is_file():  # Megatron names both files by what they share
            files = [Path(f"{place}.bin")]
        elif glob.has_magic(place):
            found = sorted(glob.glob(place, recursive=True), key=os.fsencode)
            files = _of_split(
                [Path(f) for f in found if not Path(f).is_dir()], place, split, progress
            )
            if not files:
                raise InputError(f"no file matches {place}; check the pattern")
        else:
            raise InputError(
                f"there is no file {place}; check the path (a dataset of the hub is hub:ORG/SET)"
            )
    except OSError as error:
        raise InputError(f"{error.filename or name} cannot be read: {error.strerror}") from None
    for file in files:
        yield file, redacted(str(file))


def _walked(path: Path, output: str) -> list[Path]:
    """Files of a known format in a folder, sorted bytewise, without those of the output."""
    own = {Path(output + end).absolute() for end in ("", ".incomplete", ".replaced")}

    def unreadable(error: OSError) -> None:  # os.walk would skip the folder
        raise error

    files = []
    for folder, subfolders, names in os.walk(path, onerror=unreadable):
        subfolders[:] = [
            name
            for name in subfolders
            if not name.startswith(".") and not (output and Path(folder, name).absolute() in own)
        ]
        files += [
            Path(folder, name)
            for name in names
            if not name.startswith(".") and format_of(name)[0] is not None
        ]
    beside = {
        other
        for file in files
        if (found := format_of(file.name)[0]) is not None and found.beside is not None
        for other in _quietly_beside(str(file), found.beside)
    }
    files = [file for file in files if str(file) not in beside]
    if not files:
        endings = ", ".join(f".{end}" for each in FORMATS.values() for end in each.endings)
        raise InputError(f"{path} holds no file of a known format; expected {endings}")
    return sorted(files, key=os.fsencode)


def _quietly_beside(name: str, beside: Any) -> list[str]:
    try:
        return list(beside(name))
    except InputError:
        return []


def _of_split(files: Sequence[Path], place: str, asked: str, progress: Progress) -> list[Path]:
    """The files of the split that is asked for; InputError if several are there and none is."""
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(split_name(file, place), []).append(file)
    named = sorted(name for name in by_split if name)
    if asked:
        wanted = asked.split("+")
        chosen = [f for f in files if {split_name(f, place), _raw_split(f, place)} & {*wanted}]
        if not chosen:
            raise InputError(
                f"{place} has no files of {asked!r}; it has {', '.join(named) or 'none'}"
            )
        files = chosen
    elif len(named) > 1:
        raise InputError(
            f"{place} has files of several splits: {', '.join(named)}; name one, such as "
            f"{place}#{named[0]}, or all: {place}#{'+'.join(named)}"
        )
    full = [file for file in files if file.stat().st_size]
    if len(full) < len(files):
        empty = len(files) - len(full)
        progress.say(f"{place}: {empty:,} empty file{'s are' if empty > 1 else ' is'} passed over")
    if not full:
        raise InputError(f"{place} has empty files only; expected at least one document")
    return [_tokens_of(file) for file in full]


def split_name(path: Path, place: str) -> str:
    """Split that the name of a file or of its folders says; "" for none.

    A word counts alone, or apart from the rest by other signs than letters.
    """
    return _SPLITS.get(_raw_split(path, place), "")


def _raw_split(path: Path, place: str) -> str:
    root = Path(place) if not glob.has_magic(place) else Path(place.split("*", 1)[0]).parent
    try:
        parts = path.relative_to(root).parts
    except ValueError:
        parts = path.parts[-1:]
    for part in (parts[-1].split(".")[0], *parts[:-1]):
        for word in re.split(r"[^A-Za-z]+", part):
            if word.lower() in _SPLITS:
                return word.lower()
    return ""


def _tokens_of(path: Path) -> Path:
    """x.bin of x.idx, and x.npy of x.offsets.npy; others unchanged."""
    for ending, tokens in ((".idx", ".bin"), (".offsets.npy", ".npy"), (".label_mask.npy", ".npy")):
        if path.name.endswith(ending):
            other = path.with_name(path.name.removesuffix(ending) + tokens)
            if other.is_file():
                return other
    return path


def _saved(path: Path, split: str) -> list[Path]:
    """The Arrow files of a saved dataset, or of a split of one."""
    if (path / "dataset_dict.json").exists():
        splits = sorted(child.name for child in path.iterdir() if (child / "state.json").exists())
        chosen = split or (splits[0] if len(splits) == 1 else "")
        if chosen not in splits:
            named = ", ".join(f"{path}#{name}" for name in splits)
            raise InputError(f"{path} has several splits; name one: {named}")
        path = path / chosen
    try:
        return saved_files(path)
    except FormatError as error:
        raise InputError(str(error)) from None


def _spooled(scratch: Path) -> Path:
    scratch.mkdir(parents=True, exist_ok=True)
    path = scratch / "stdin.jsonl"
    with path.open("wb") as file:
        while block := sys.stdin.buffer.read(1 << 20):
            file.write(block)
    if not path.stat().st_size:
        raise InputError("standard input is empty; expected JSON lines")
    return path


def _from_hub(name: str) -> list[tuple[Path, str]]:
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
    return [(Path(file["filename"]), redacted(name)) for file in loaded.cache_files]


def _source(path: Path, shown: str, rows: Rows) -> Source:
    """A source without its digest."""
    kind, compression = format_of(path.name)
    if kind is None:
        endings = ", ".join(f".{end}" for each in FORMATS.values() for end in each.endings)
        raise InputError(f"{shown} is of no known format; expected {endings}, also .gz and .zst")
    if path.is_symlink() and not path.exists():
        raise InputError(f"{shown} is a link to {os.readlink(path)}, which does not exist")
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise InputError(f"{shown} is not a regular file; to read a pipe use - for standard input")
    if not facts.st_size:
        raise InputError(f"{shown} is empty; expected at least one document")
    if kind.beside is not None and not isinstance(rows, Ids):
        raise InputError(
            f"{shown} holds token ids, and this build reads text; give --ids input_ids, or name "
            "other files"
        )
    return Source(
        number=0,
        name=shown,
        path=str(path),
        format=kind.name,
        compression=compression,
        bytes=facts.st_size,
        digest="",
        state=facts.st_mtime_ns,
        rows=rows,
    )


def _digested(source: Source) -> Source:
    """The source with the digest of its content, and of the files beside it."""
    beside = FORMATS[source.format].beside
    others = beside(source.path) if beside is not None else []
    try:
        digests = [file_digest(Path(name), xxhash.xxh3_128) for name in [source.path, *others]]
    except OSError as error:
        raise InputError(f"{source.name} cannot be read: {error.strerror}") from None
    whole = digests[0] if not others else xxhash.xxh3_128_hexdigest(" ".join(digests).encode())
    return replace(source, digest=whole)


def _typed(sources: list[Source], config: BuildConfig) -> list[Source]:
    """The sources with the kinds of their labels, and the types of carried columns.

    The first file of each entry says them; wanted columns must be there.
    """
    firsts = {source.entry: source for source in reversed(sources)}
    known = {entry: _checked(source, config) for entry, source in sorted(firsts.items())}
    return [
        replace(
            source,
            rows=replace(source.rows, kind=known[source.entry].rows.kind)  # type: ignore
            if isinstance(source.rows, Ids)
            else source.rows,
            carried=known[source.entry].carried,
        )
        for source in sources
    ]


def _checked(source: Source, config: BuildConfig) -> Source:
    """One source, with its columns checked and its types known."""
    names = FORMATS[source.format].columns(source)
    for name in columns_of(source, config.group):
        if names.count(name) > 1:
            raise InputError(f"{source.name} has more than one column {name!r}; rename one")
        is_token_file = FORMATS[source.format].beside is not None
        if name not in names and not is_token_file and source.format != "json":
            raise InputError(
                f"{source.name} has no column {name!r}; it has {', '.join(names) or 'no columns'}"
            )
        if name not in names and source.format == "json":
            objects = list(first_rows(source))
            if objects and not any(name in each for each in objects):
                raise InputError(f"{source.name} has no column {name!r}; it has {', '.join(names)}")
    rows = source.rows
    if isinstance(rows, Ids) and rows.labels is not None and rows.kind is None:
        source = replace(source, rows=replace(rows, kind=_label_kind(source, rows)))
    carried = tuple(_carried_type(source, CarriedOption.parse(each)) for each in config.carry)
    return replace(source, carried=carried)


def _label_kind(source: Source, rows: Ids) -> str:
    """labels or mask, as the first rows with values say."""
    table = _first_table(source, (rows.column, str(rows.labels)))
    labels = [value for row in table.get(str(rows.labels), []) for value in row or []]
    if any(isinstance(value, bool) for value in labels):
        return "mask"
    ids = {value for row in table.get(rows.column, []) for value in row or []}
    if not {*labels} <= {0, 1}:
        return "labels"
    if not ids <= {0, 1} or not labels:
        return "mask"
    raise InputError(
        f"{source.name} has only 0 and 1 in {rows.labels!r} and in its token ids, so it may be "
        f"labels or a mask; give --ids {rows.column},{rows.labels}:labels or :mask"
    )


def _carried_type(source: Source, asked: CarriedOption) -> Carried:
    """The type of a carried column in the first rows."""
    values = [v for v in _first_table(source, (asked.name,)).get(asked.name, []) if v is not None]
    is_list = bool(values) and isinstance(values[0], list)
    try:
        found = pa.array(values).type
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        found = pa.string()
    kind: Any = found.value_type if is_list else found
    if source.format in ("parquet", "arrow"):
        kind = _stored_type(source, asked.name)
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not numbers:
        shown = "no value" if pa.types.is_null(kind) else str(found)
        raise InputError(
            f"{source.name} has {shown} in {asked.name!r} in its first rows, expected numbers or "
            "lists of numbers to carry"
        )
    if is_list and not isinstance(source.rows, Ids):
        raise InputError(
            f"{source.name} has lists in {asked.name!r}: a value for each token needs the tokens "
            "it belongs to, so add --ids, or carry a plain number"
        )
    stored = {"bool": "int8", "uint16": "int32", "uint32": "int64", "uint64": "int64"}
    stored |= {"halffloat": "float32", "double": "float32", "float": "float32"}
    return Carried(asked.name, is_list, asked.type or stored.get(str(kind), str(kind)))


def _stored_type(source: Source, name: str) -> Any:
    """Type of the numbers in a column of a Parquet or Arrow file."""
    wanted = Wanted({name: (pa.int64(),)})
    raw = next(FORMATS[source.format].read(source, 0, -1, wanted), None)
    kind: Any = pa.null() if raw is None else raw.table[name].type
    return getattr(kind, "value_type", kind)


def _first_table(source: Source, names: Sequence[str]) -> dict[str, list[Any]]:
    """Values of columns in the first rows."""
    if source.format == "json":
        rows = list(first_rows(source))
        return {name: [row.get(name) for row in rows] for name in names}
    wanted = Wanted(dict.fromkeys(names, (pa.list_(pa.int64()),)))
    raw = next(FORMATS[source.format].read(source, 0, -1, wanted), None)
    return {} if raw is None else raw.table.slice(0, 512).to_pydict()
