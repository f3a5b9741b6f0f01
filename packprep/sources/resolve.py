"""The sources of a build: names on the command line to files with a digest, in a fixed order.

A path that exists is that path. A name with a known suffix, or a glob that matches nothing, is an
error. Any other name is a dataset on the hub. Files of a glob or directory are sorted bytewise, so
that document ids never depend on the disk.
"""

import glob
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from packprep.config.grammar.label_columns import with_label_kind
from packprep.config.grammar.source_names import HUB_PREFIX, IDS_COLUMN, HubPart
from packprep.config.stages import PER_SOURCE, Parsing, Reading
from packprep.schemas.errors import FormatError
from packprep.schemas.files import inside
from packprep.schemas.storage.export_manifest import EXPORT
from packprep.schemas.storage.stores import is_url
from packprep.sources.digests import digest_of_files, hash_in_threads, reporting_to
from packprep.sources.empty_files import without_empty
from packprep.sources.formats.datasets_rows import HUB, SAVED, chosen_split, data_files, open_hub
from packprep.sources.formats.format import Format
from packprep.sources.formats.jsonl import JSON
from packprep.sources.formats.registry import FORMATS, format_of, known_endings, known_format
from packprep.sources.formats.text_rows import TEXT
from packprep.sources.reading import holds_rows, label_kind
from packprep.sources.remote import expand_url
from packprep.sources.source import STDIN, Source, file_state
from packprep.sources.split_names import of_splits
from packprep.sources.token_files.names import is_file, token_sources, tokens_name
from packprep.support.errors import ConfigError, InputError, system_error
from packprep.support.progress import Progress, Silent
from packprep.support.redact import redacted

OUTPUT_ENDINGS = (
    "",
    ".incomplete",
    ".replaced",
    ".appended",
    ".appended.incomplete",
    ".appended.replaced",
)
"""Of the names that an output and the directories beside it have while it is made."""

_Expand = Callable[[str, HubPart, str, Path, Progress], list[Source]]
"""f(name, part of a dataset, output, scratch folder, progress) -> the sources of a name."""

_DESCRIBE = ("state.json", "dataset_info.json")  # beside the data files of a saved dataset


def resolve(
    reading: Reading,
    parsing: Parsing,
    output: str,
    scratch: Path,
    progress: Progress | None = None,
) -> list[Source]:
    """Sources of a build in order, each with its digest.

    output: no source, even if it is in a folder of them. Standard input is copied into `scratch`. A
    file that is named twice is one source, with a note.
    """
    if not reading.sources:
        raise InputError(
            "no source is given; name files, a directory, - for standard input or a hub dataset"
        )
    progress = progress or Silent()
    with reporting_to(progress):
        return _resolved(reading, parsing, output, scratch, progress)


def _resolved(
    reading: Reading, parsing: Parsing, output: str, scratch: Path, progress: Progress
) -> list[Source]:
    sources: list[Source] = []
    whole = HubPart()
    for number, entry in enumerate(reading.entries()):
        part = HubPart(**{key: entry.reading.get(key) for key in HubPart._fields})
        part, whole = part.or_else(entry.given), entry.given
        with _readable(entry.label):
            files = []
            for name in entry.paths:
                of_name = [
                    replace(source, entry=number, reading=entry.reading)
                    for source in _expand(name, part, output, scratch, progress)
                ]
                _check_ids(of_name, parsing.of_source(entry.reading))
                files += _with_rows(of_name, name, parsing, scratch, progress)
        _check_keys(entry.reading, files, f"source {entry.label}: ")
        _check_sample_by(entry.reading.get("sample_by"), files, f"source {entry.label}: ")
        sources += files
    _check_keys(whole._asdict(), sources)
    _check_sample_by(parsing.sample_by, sources)
    once, again = _once(sources)
    if again and reading.is_mix:
        raise InputError(
            f"{again[0].name} is in the mix twice; name it once, and repeat it with epochs"
        )
    if again:
        others = "1 other source" if len(again) == 2 else f"{len(again) - 1:,} other sources"
        more = f", and {others}" if len(again) > 1 else ""
        progress.say(f"{again[0].name} is named twice, and read once{more}")
    return _with_labels(once, parsing, scratch)


def _with_rows(
    sources: list[Source], name: str, parsing: Parsing, scratch: Path, progress: Progress
) -> list[Source]:
    """The sources of a folder or glob without those that hold no row, which are said.

    A source that is alone is kept, so that reading it says that it is empty.
    """
    if len(sources) < 2:
        return sources
    full = without_empty(
        {source.name: source for source in sources},
        name,
        lambda source: not holds_rows(source, parsing, scratch),
        progress.say,
    )
    if not full:
        raise InputError(
            f"{name} holds no rows in its {len(sources):,} files; expected at least one document"
        )
    return full


def _with_labels(sources: list[Source], parsing: Parsing, scratch: Path) -> list[Source]:
    """The sources with the kind of their labels, which the first file of each entry decides."""
    firsts = {source.entry: source for source in reversed(sources)}
    own = (parsing.of_source(first.reading) for first in firsts.values())
    if all(each.label_columns.either is None for each in (parsing, *own)):
        return sources
    kinds = {entry: label_kind(first, parsing, scratch) for entry, first in sorted(firsts.items())}
    found = {kind: firsts[entry].name for entry, kind in kinds.items() if kind is not None}
    if len(found) > 1:
        raise InputError(
            f"{found['labels']} has labels and {found['mask']} a mask; expected one of them for "
            "all sources: convert one, or build the two apart and merge them"
        )
    kind = next(iter(found), None)
    return [
        replace(source, labels=kind, reading=with_label_kind(source.reading, kind))
        for source in sources
    ]


def _check_ids(sources: list[Source], parsing: Parsing) -> None:
    """Refuse files of token ids in a build of text."""
    for source in sources:
        if source.format.beside is not None and parsing.input_ids_column is None:
            raise InputError(
                f"{source.name} holds token ids, and this build reads text; give "
                f"--input-ids-column {IDS_COLUMN} and leave out options for text, or name other "
                "files"
            )


def _check_keys(options: Mapping[str, object], sources: list[Source], where: str = "") -> None:
    kinds = {source.kind for source in sources}
    for key in HubPart._fields:
        owners = [owner.name for owner in FORMATS.values() if key in owner.options]
        if options.get(key) is not None and not kinds.intersection(owners):
            listed = " and ".join(sorted(owners))
            raise InputError(
                f"{where}{key} {options[key]!r} is for {listed} datasets, and no source is one; "
                "leave it out"
            )


def _check_sample_by(asked: object, sources: list[Source], where: str = "") -> None:
    """Refuse a division of .txt files where there are none."""
    if asked not in (None, "document") and all(source.format != TEXT for source in sources):
        raise ConfigError(
            f"{where}--sample-by {asked} divides .txt files, and no source is one; leave it out"
        )


def _once(sources: list[Source]) -> tuple[list[Source], list[Source]]:
    """Sources without those that are named again, by a glob, a link or a second name; and these.

    A file that is read with other options makes other text, and is a source of its own.
    """
    once: dict[tuple[object, ...], Source] = {}
    again = []
    for source in sources:
        options = [source.reading.get(key) for key in PER_SOURCE if key != "limit"]
        place: object = source.name
        if isinstance(source.path, Path):
            facts = source.path.stat()
            place = (facts.st_dev, facts.st_ino)
        first = once.setdefault((place, source.sha256, *options), source)
        if first.limit != source.limit:
            raise InputError(f"{source.name} is named twice with other limits; name it once")
        if first is not source:
            again.append(source)
    return list(once.values()), again


def check_local(reading: Reading, output: str) -> None:
    """Raise InputError for a source with a wrong name, kind or size.

    Nothing is read, and the hub is not asked.
    """
    for entry in reading.entries():
        with _readable(entry.label):
            for name in entry.paths:
                for path in _local_files(name, output, Silent()):
                    _check_file(path)


@contextmanager
def _readable(label: str) -> Iterator[None]:
    """Raise InputError for a source that may not be read; keep errors of the system itself."""
    try:
        yield
    except OSError as error:
        if system_error(error) is not None:
            raise
        raise InputError(f"{error.filename or label} cannot be read: {error.strerror}") from None


def _expand(
    name: str, part: HubPart, output: str, scratch: Path, progress: Progress
) -> list[Source]:
    path, split = _with_split(name)
    if (expand := _expander(path)) is not None:
        return expand(path, part._replace(split=split or part.split), output, scratch, progress)
    files = _local_files(name, output, progress)
    return _files(files) if files else [_hub(name, part)]


def _with_split(name: str) -> tuple[str, str | None]:
    """A local name, and the splits that it chooses: "data", "train" of "data#train".

    A name that is itself a path, or matches files, chooses none.
    """
    path, sign, split = name.rpartition("#")
    if not sign or not split or name.startswith(HUB_PREFIX) or is_url(name):
        return name, None
    if os.path.lexists(name) or (glob.has_magic(name) and glob.glob(name, recursive=True)):
        return name, None
    return (path, split) if os.path.lexists(path) or glob.has_magic(path) else (name, None)


def _expander(name: str) -> _Expand | None:
    """Function that finds the sources of a name; None for files, and for a dataset on the hub."""
    return next((expand for matches, expand in _KINDS if matches(name)), None)


def _local_files(name: str, output: str, progress: Progress) -> list[Path]:
    """Local files that the name of a source means.

    Empty for the hub, a store, standard input or a saved dataset. InputError if the name can only
    mean files, and there are none.
    """
    name, split = _with_split(name)
    path = Path(name)
    if _expander(name) is not None:
        return []

    def chosen(files: Sequence[Path], folder: Path) -> list[Path]:
        inside = {file.relative_to(folder).as_posix(): file for file in files}
        found = {str(file): file for file in of_splits(inside, name, split, progress.say)}
        return without_empty(found, name, _is_empty, progress.say) or [*found.values()]

    if path.is_dir():
        return chosen(_walked(path, output), path)
    if path.exists():
        return chosen([Path(tokens_name(name, is_file))], path.parent)
    if is_file(f"{name}.idx"):  # Megatron names both files by what they share
        return [Path(f"{name}.bin")]
    if path.is_symlink():
        raise _dangling(path)
    if glob.has_magic(name):
        matches = [
            Path(match) for match in sorted(glob.glob(name, recursive=True), key=os.fsencode)
        ]
        _check_readable(Path(name))
        for match in matches:
            if match.is_dir() and format_of(match.name) is not None and "**" not in name:
                raise InputError(f"{match} is a folder, and {name} takes files; match those in it")
        files = [
            match for match in matches if not match.is_dir()
        ]  # keep pipes and dangling links: they are errors later
        if not files:
            raise InputError(f"no file matches {name}; check the pattern")
        return chosen(_alone(files, lone=True), _fixed(name))
    if format_of(name) is not None or name.startswith((".", "/", "~")):
        raise InputError(f"no such file: {name}")
    return []


def _is_empty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0


def _fixed(pattern: str) -> Path:
    """The folder of a pattern before its first sign."""
    parts = Path(pattern).parts
    signs = [place for place, part in enumerate(parts) if glob.has_magic(part)]
    return Path(*parts[: signs[0]])


def _check_readable(pattern: Path) -> None:
    """Raise OSError if the pattern passes a folder that may not be read: `glob` ignores it."""
    through = [pattern] if pattern.name == "**" else []
    for folders in [*through, *pattern.parents]:
        for folder in filter(os.path.isdir, glob.glob(str(folders), recursive=True)):
            os.scandir(folder).close()


def _files(paths: Sequence[Path]) -> list[Source]:
    return hash_in_threads(
        _file, paths, sum(path.stat().st_size for path in paths if path.exists())
    )


def _file(path: Path) -> Source:
    format_, size = _check_file(path)
    files = [path]
    if format_.beside is not None:
        files += [Path(name) for name in format_.beside(str(path), is_file)]
        size = sum(file.stat().st_size for file in files)
    return _digested(redacted(str(path)), format_, path, size, files)


def _digested(
    name: str,
    format_: Format,
    path: Path | None,
    size: int,
    files: Sequence[Path],
    described_by: Sequence[Path] = (),
) -> Source:
    """The source of these files, with their digest.

    described_by: files that say how the others are read.
    """
    states = tuple(map(file_state, [*files, *described_by]))  # before a byte is read
    return Source(name, format_.name, path, size, digest_of_files(files), files=states)


def _check_file(path: Path) -> tuple[Format, int]:
    """Format and size of a file, without reading it.

    InputError if it cannot be a source.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(f"the name of {os.fsencode(path)!r} is not UTF-8; rename it") from None
    format_ = known_format(str(path))
    if path.is_symlink() and not path.exists():
        raise _dangling(path)
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise InputError(f"{path} is not a regular file; to read a pipe use - for standard input")
    if facts.st_size == 0:
        raise InputError(f"{path} is empty; expected at least one document")
    return format_, facts.st_size


def _dangling(path: Path) -> InputError:
    return InputError(f"{path} is a link to {os.readlink(path)}, which does not exist")


def _is_saved(path: Path) -> bool:
    """True if a path is a directory that `save_to_disk` wrote."""
    return (path / "dataset_dict.json").exists() or (path / "state.json").exists()


def _walked(path: Path, output: str) -> list[Path]:
    """The files of a known format in a directory, sorted bytewise."""
    # The output may be next to the sources: the same command must find the same files again.
    outputs = {Path(output + ending).absolute() for ending in OUTPUT_ENDINGS if output}
    files = []

    def unreadable(error: OSError) -> None:  # os.walk would skip the folder
        raise error

    for folder, subfolders, names in os.walk(path, onerror=unreadable):
        subfolders[:] = [
            name
            for name in subfolders
            if not name.startswith(".") and Path(folder, name).absolute() not in outputs
        ]
        for name in subfolders:
            if (link := Path(folder, name)).is_symlink():  # following it could loop forever
                raise InputError(
                    f"{link} is a link to a folder; pass the folder as a separate source, or "
                    "move it here"
                )
        files += [
            Path(folder, name)
            for name in names
            if format_of(name) is not None and not name.startswith(".") and name != EXPORT
        ]
    files = _alone(files, lone=False)
    if not files:
        raise InputError(f"{path} holds no file of a known format; expected {known_endings()}")
    return sorted(files, key=os.fsencode)


def _alone(files: Sequence[Path], *, lone: bool) -> list[Path]:
    """Files without those that belong to a file of token ids, see `token_sources`."""
    return [Path(name) for name in token_sources([*map(str, files)], is_file, lone=lone)]


def _saved(path: Path, asked: str | None) -> Source:
    """A directory written by `save_to_disk`: its data files are its content. asked: its split."""
    split = ""
    if (path / "dataset_dict.json").exists():
        splits = sorted(child.name for child in path.iterdir() if (child / "state.json").exists())
        split, asked = chosen_split(str(path), splits, asked), None
    try:
        folder = inside(path, split, str(path)) if split else path
        state = folder / "state.json"
        names = data_files(state.read_bytes(), str(state), str(path), asked)
        files = [inside(folder, name, str(state)) for name in names]
        size = sum(file.stat().st_size for file in files)
        described_by = [folder / name for name in _DESCRIBE if (folder / name).exists()]
        return _digested(redacted(str(path)), SAVED, folder, size, files, described_by)
    except OSError as error:
        raise InputError(
            f"{path} is incomplete: {error.filename} cannot be read: {error.strerror}"
        ) from None
    except FormatError as error:
        raise InputError(str(error)) from None


def _hub(name: str, part: HubPart) -> Source:
    dataset = open_hub(name, part)
    files = [Path(file["filename"]) for file in dataset.cache_files]
    size = sum(file.stat().st_size for file in files)
    return replace(_digested(redacted(name), HUB, None, size, files), part=part)


def _spool_stdin(scratch: Path) -> Source:
    path = scratch / "stdin.jsonl"
    scratch.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        while block := sys.stdin.buffer.read(1 << 20):
            file.write(block)
    if path.stat().st_size == 0:
        raise InputError("standard input is empty; expected JSON lines")
    return _digested(STDIN, JSON, path, path.stat().st_size, [path])


# Kinds of sources that a name tells apart from files, in the order in which it is tried.
_KINDS: tuple[tuple[Callable[[str], bool], _Expand], ...] = (
    (lambda name: name == "-", lambda name, part, output, scratch, _: [_spool_stdin(scratch)]),
    (
        lambda name: name.startswith(HUB_PREFIX),
        lambda name, part, output, scratch, _: [_hub(name, part)],
    ),
    (
        is_url,
        lambda name, part, output, scratch, progress: expand_url(
            name, part.split, output, progress
        ),
    ),
    (
        lambda name: _is_saved(Path(name)),
        lambda name, part, output, scratch, _: [_saved(Path(name), part.split)],
    ),
)
