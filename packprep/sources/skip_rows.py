"""Rows that a build leaves out, from the file of `skip_rows`: a SOURCE:ROW a line.

In place of the file it may be an output, whose manifest has the rows that its build left out.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from packprep.config.stages import Reading
from packprep.schemas.errors import FormatError
from packprep.schemas.manifest import Manifest, read_manifest
from packprep.schemas.sources import Sources, listed_rows, source_number, split_row
from packprep.sources.source import Source
from packprep.support.arrays import Int64
from packprep.support.errors import ConfigError

_EXPECTED = "expected a file with a SOURCE:ROW a line, as packprep spike --rows writes it"


def with_skip_rows(
    sources: Sequence[Source], path: str | None, packed: Mapping[str, Collection[int]]
) -> list[Source]:
    """The sources with the rows of each that a file, or an output, lists. path: None for no rows.

    packed: rows that an output which grows has left out, for each of its sources by name; the file
    may name these too. Raises ConfigError that names the line of another source.
    """
    if path is None:
        return [*sources]
    names = [source.name for source in sources]
    names += [name for name in packed if name not in names]
    rows: list[set[int]] = [set() for _ in names]
    for _, (number, row) in _lines(path, names):
        rows[number].add(row)
    for name, of_source in [*zip(names, rows, strict=True)][len(sources) :]:
        check_left_out(name, of_source, packed[name])
    return [
        replace(source, skip_rows=tuple(sorted(listed)))
        for source, listed in zip(sources, rows, strict=False)
    ]


def left_out_of(manifest: Manifest) -> list[tuple[str, Sequence[int]]]:
    """Name of each source of an output, and its rows that `skip_rows` of the build left out."""
    recorded = manifest.data["inputs"]["sources"]
    rows = [source.get("skip_rows", ()) for source in recorded]
    return [*zip(Sources(manifest).names, rows, strict=True)]


def check_left_out(name: str, rows: Collection[int], before: Collection[int]) -> None:
    """Raise ConfigError if an output that grows has one of these rows. before: that it lacks."""
    if more := {*rows}.difference(before):
        raise ConfigError(
            f"--skip-rows lists {name} row {min(more)}, which the output has already, and --append "
            "takes nothing out of it; build all of it again with --overwrite"
        )


def skipped_documents(
    sources: Sequence[Source], rows: Sequence[int], reading: Reading, path: str | None
) -> Int64 | None:
    """Ids of the documents of the listed rows; None if no row is listed.

    rows: number of rows read of each source. path: of the file. Raises ConfigError for a row beyond
    the end of its source. A row that a limit leaves unread is none.
    """
    if not any(source.skip_rows for source in sources):
        return None
    ids, first = [], 0
    for number, (source, count) in enumerate(zip(sources, rows, strict=True)):
        listed = np.array(source.skip_rows, np.int64)
        read = listed[listed < count]
        if len(read) < len(listed) and reading.reads_all and source.limit is None:
            row = int(listed[len(read)])
            line = _line_of(str(path), sources, (number, row))
            raise ConfigError(
                f"--skip-rows {path}{line}: {source.name} has {count:,} rows, numbered from 0; "
                f"there is no row {row}; fix the line, or delete it"
            )
        ids.append(first + read)
        first += count
    return np.concatenate(ids)


def _lines(path: str, names: Sequence[str]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Number of each line of a list, and the source and the row that it names."""

    @cache
    def number_of(source: str) -> int:
        return source_number(source, names, "this build")

    def find(name: str) -> tuple[int, int]:
        source, row = split_row(name, names[0])
        if not source:
            raise ValueError(f"{name} has no source; expected SOURCE:ROW, such as {names[0]}:{row}")
        return number_of(source), row

    try:
        if Path(path).is_dir():
            yield from enumerate(map(find, _of_output(Path(path))))
        else:
            yield from listed_rows(Path(path), find)
    except FormatError:
        raise
    except OSError as error:
        raise ConfigError(f"--skip-rows {path}: {error.strerror}; {_EXPECTED}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--skip-rows {path} is not text in UTF-8; {_EXPECTED}") from None
    except ValueError as error:
        of_output = f"{path}: " if Path(path).is_dir() else ""
        raise ConfigError(f"--skip-rows {of_output}{error}") from None


def _of_output(path: Path) -> list[str]:
    """SOURCE:ROW of each row that an output lacks as `skip_rows` of its build asked."""
    listed = left_out_of(read_manifest(path))
    rows = [f"{name}:{row}" for name, of_source in listed for row in of_source]
    if not rows:
        raise ValueError("the build of this output left out no rows; give a list of rows")
    return rows


def _line_of(path: str, sources: Sequence[Source], place: tuple[int, int]) -> str:
    """The line that lists a row, for a sentence; "" if the file has changed."""
    with suppress(ConfigError, FormatError):
        for number, listed in _lines(path, [source.name for source in sources]):
            if listed == place and not Path(path).is_dir():
                return f" line {number}"
    return ""
