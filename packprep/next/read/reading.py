"""Splits of the input, and the documents of their rows.

A split is a range of files that their sizes alone decide. Any process can begin with any split. All
splits in order are all rows, once, in input order, whatever the number of workers.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from ..support.errors import InputError
from .rows import columns_of, documents_of
from .types import Batch, Piece, Problem, Raw, Source, Split, format_of

SPLIT_BYTES = 16_000_000


def splits(sources: Sequence[Source], size: int = SPLIT_BYTES) -> list[Split]:
    """Splits of about `size` bytes; a file that cannot be cut is one piece."""
    made: list[Split] = []
    pending: list[Piece] = []
    filled = 0
    for source in sources:
        cut = format_of(source.format).cut
        places = [0] if cut is None or source.compression else cut(source, size)
        share = source.bytes // len(places)
        for number, (begin, end) in enumerate(zip(places, [*places[1:], -1], strict=True), 1):
            if pending and filled + share > size:
                made.append(tuple(pending))
                pending, filled = [], 0
            pending.append(Piece(source.number, begin, end))
            filled += share
            if number < len(places) and filled >= size:
                made.append(tuple(pending))
                pending, filled = [], 0
    return [*made, tuple(pending)] if pending else made


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
    left = {} if left is None else left
    for piece in split:
        source = sources[piece.source]
        keys = [key for key in (None, source.entry) if key in left]
        before = 0  # rows of this piece that were read
        rows = _rows(source, piece.begin, piece.end, group)
        while all(left[key] for key in keys) and (raw := next(rows, None)) is not None:
            most = min([len(raw.table), *(left[key] for key in keys)])
            bad = {row: problem for row, problem in raw.problems.items() if row < most}
            raw = raw._replace(table=raw.table.slice(0, most), problems=bad)
            left.update({key: left[key] - most for key in keys})
            batch = documents_of(raw, source, group)
            if batch.problems and not skips:
                first = min(batch.problems)
                raise _bad_row(source, piece, before + first, batch.problems[first])
            yield batch
            before += most
        if not before and (piece.begin, piece.end) == (0, -1) and all(left[key] for key in keys):
            raise InputError(f"{source.name} holds no rows; expected at least one document")


def _rows(source: Source, begin: int, end: int, group: str | None) -> Iterator[Raw]:
    return format_of(source.format).read(source, begin, end, columns_of(source, group))


def _bad_row(source: Source, piece: Piece, row: int, problem: Problem) -> InputError:
    """The error about a row, whose number in the file is counted now."""
    check_unchanged(source)
    if piece.begin:
        row += sum(len(raw.table) for raw in _rows(source, 0, piece.begin, None))
    line_of = format_of(source.format).line_of
    line = line_of(source, row) if line_of is not None else None
    place = f"{source.name} row {row}" + (f" (line {line})" if line else "")
    return InputError(f"{place}: {problem.detail}; fix it, or skip such rows with --on-error skip")


def check_unchanged(source: Source) -> None:
    """Raise InputError if a file is not the one that was digested."""
    try:
        same = not source.state or state_of(source.paths) == source.state
    except OSError as error:
        raise InputError(f"{source.name} cannot be read any more: {error.strerror}") from None
    if not same:
        raise InputError(
            f"{source.name} has changed since the build began; put new rows into a file of another "
            "name, or build again from the start"
        )


def state_of(paths: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Size and time of the last change of files."""
    facts = [Path(path).stat() for path in paths]
    return tuple((each.st_size, each.st_mtime_ns) for each in facts)
