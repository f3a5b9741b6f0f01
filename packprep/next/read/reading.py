"""Rows of a split as documents."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..support.errors import InputError
from .formats.registry import FORMATS
from .rows import documents_of, wanted_of
from .types import Batch, Piece, Problem, Raw, Source, Split


def read(
    split: Split,
    sources: Sequence[Source],
    *,
    skips: bool = False,
    group: str | None = None,
    left: dict[int | None, int] | None = None,
) -> Iterator[Batch]:
    """Documents of the rows of a split, in order.

    skips: bad rows are counted, else the first is an error. group: column of groups. left: rows
    that may still be read, of all (None) and by entry; reduced as rows are read. Raises InputError
    with file and row.
    """
    for piece in split:
        source = sources[piece.source]
        if left is not None and 0 in (left.get(None), left.get(source.entry)):
            continue
        before = 0  # rows of this piece that were read
        rows = 0
        for raw in FORMATS[source.format].read(
            source, piece.begin, piece.end, wanted_of(source, group)
        ):
            rows += len(raw.table)
            raw = _limited(raw, source, left)
            if not len(raw.table):
                break
            documents, problems, cut = documents_of(raw, source, group)
            if problems and not skips:
                first = min(problems)
                raise _bad_row(source, piece, before + first, problems[first], sources)
            yield Batch(
                source=source.number,
                rows=len(raw.table),
                documents=documents,
                skipped=Counter(problem.reason for problem in problems.values()),
                cut=cut,
            )
            before += len(raw.table)
        if not rows and (piece.begin, piece.end) == (0, -1):
            raise InputError(f"{source.name} holds no rows; expected at least one document")


def _limited(raw: Raw, source: Source, left: dict[int | None, int] | None) -> Raw:
    """The rows that may still be read."""
    if left is None:
        return raw
    keys = [key for key in (None, source.entry) if key in left]
    rows = min([len(raw.table), *(left[key] for key in keys)])
    for key in keys:
        left[key] -= rows
    problems = {row: problem for row, problem in raw.problems.items() if row < rows}
    return Raw(raw.table.slice(0, rows), problems)


def _bad_row(
    source: Source, piece: Piece, row: int, problem: Problem, sources: Sequence[Source]
) -> InputError:
    """The error about a row, whose number in the file is counted now."""
    check_unchanged(source)
    row += rows_before(source, piece.begin)
    find = FORMATS[source.format].line_of
    line = find(source, row) if find is not None else None
    place = f"{source.name} row {row}" + (f" (line {line})" if line else "")
    return InputError(f"{place}: {problem.detail}; fix it, or skip such rows with --on-error skip")


def rows_before(source: Source, begin: int) -> int:
    """Rows of a source before a piece of it; reads them."""
    if not begin:
        return 0
    wanted = wanted_of(source, None)
    return sum(len(raw.table) for raw in FORMATS[source.format].read(source, 0, begin, wanted))


def check_unchanged(source: Source) -> None:
    """Raise InputError if a file is not the one that was digested."""
    try:
        facts = Path(source.path).stat()
    except OSError as error:
        raise InputError(f"{source.name} cannot be read any more: {error.strerror}") from None
    if (facts.st_size, facts.st_mtime_ns) != (source.bytes, source.state) and source.state:
        raise InputError(
            f"{source.name} has changed since the build began; put new rows into a file of another "
            "name, or build again from the start"
        )
