"""Text to token files.

One slice of a unit in, one Arrow file of `list<int32>` out, through a batched `datasets.map`.

`map` takes a table of text and returns a table of tokens, without any Python int. A token file has
every row of its slice, or a document for each turn of a row; an empty document and a skipped row
have no tokens. Next to each file is a
receipt with its digest.

Other columns of a file, where its rows have them: `group` (string), `prefix_group` (int64),
`labels` (list<int32> with NO_LOSS where there is no loss, or list<int8>, 1 where there is one),
carried columns (lists with a value per token, numbers with one per row), and for conversations
`turn_ids` (int32, message of the trained turn, -1 for a whole row) and `turn_rows` (int32, row in
the file, where turns may be documents).
"""

import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.chat.left_out import CountedText
from packprep.chat.turn_counts import TurnCounts, sum_counts
from packprep.config.stages import Running
from packprep.schemas.canonical import canonical_json, file_xxh3
from packprep.schemas.columns import number_type
from packprep.schemas.storage.writing import (
    errors_named,
    sync_directory,
    temporary_name,
    write_file,
)
from packprep.sources.position import Extent
from packprep.sources.source import Source, check_unchanged
from packprep.sources.units import SLICE_BYTES, Part, Slice
from packprep.support.errors import InputError
from packprep.support.problems import Problem
from packprep.tokens.encode import READ, Encoded, Encoder
from packprep.tokens.store import (
    STORED,
    LeftOutCount,
    TokenFile,
    file_name,
    read_token_receipt,
    receipt_json,
)

# Libraries, compiled kernels and an engine with its caches.
BASE_MEMORY = 600_000_000


class DocumentError(InputError):
    """A row that cannot be encoded, found only while it is tokenized.

    source: its number; the caller knows the name. row: in that source.
    """

    def __init__(self, source: int, row: int, detail: str) -> None:
        super().__init__(detail)
        self.source, self.row, self.detail = source, row, detail


Make = Callable[[Slice, threading.Event], TokenFile]
"""f(slice, stop) -> its token file; `stop` is set to end it with CancelledError."""


def tokenize_slices(
    slices: Iterator[Slice],
    directory: Path,
    make: Make,
    at_once: int = 1,
    most_tokens: int | None = None,
    report: Callable[[TokenFile], None] = lambda _: None,
    before: Sequence[TokenFile] = (),
) -> list[TokenFile]:
    """Token files of all slices. Existing files are used again.

    at_once: slices that are tokenized while the next one is read. most_tokens: slices after the
    unit that reaches as many are left out. report: called with each new file, in order. before:
    existing token files of the input before `slices`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    done: list[TokenFile] = []
    running: deque[Future[TokenFile]] = deque()
    stop = threading.Event()
    total = 0
    last: int | None = None  # the unit that reaches that many tokens

    def take(file: TokenFile) -> bool:
        """Count the file; False if it is after the last unit."""
        nonlocal total, last
        if last is not None and file.unit > last:
            return False
        done.append(file)
        total += file.tokens
        if most_tokens is not None and total >= most_tokens and last is None:
            last = file.unit
        return True

    def collect(most: int) -> None:
        while len(running) > most:
            file = running.popleft().result()
            if take(file):
                report(file)
            else:
                file.remove(directory)

    def made(piece: Slice) -> TokenFile:
        file = read_token_receipt(directory, file_name(piece.unit, piece.slice))
        return file if file and file.extent == piece.extent else make(piece, stop)

    for file in before:
        take(file)

    # Threads, unless isolation is asked for: engines release the GIL, and two processes were 1.8
    # times slower.
    with quiet_datasets(), ThreadPoolExecutor(max(at_once, 1)) as pool:
        try:
            for piece in slices:
                if last is not None and piece.unit > last:
                    break
                running.append(pool.submit(made, piece))
                collect(at_once)
            collect(0)
        finally:
            stop.set()
            for future in running:
                future.cancel()
    return done


def seal(directory: Path, files: Sequence[Extent]) -> None:
    """Record that these are all token files of the input; see `stored`."""
    write_file(directory / STORED, canonical_json([[file.unit, file.slice] for file in files]))


def sync_tokens(directory: Path, files: Sequence[Extent]) -> None:
    """Make token files and receipts survive a power failure, for who reads them later.

    Of `directory` and the two above it, because a token store and its entry may be new.
    """
    for file in files:
        made = directory / file_name(file.unit, file.slice)
        for path in (made, made.with_suffix(".json")):
            with errors_named(path), path.open("rb") as opened:
                os.fsync(opened.fileno())
    for folder in (directory, *directory.absolute().parents[:2]):
        sync_directory(folder)


def slices_ahead(running: Running, unit_size: int, *, isolated: bool) -> int:
    """Number of slices that may be tokenized while the next one is read.

    `num_proc`, or fewer where memory is short. isolated: a process of its own does each.
    """
    of_slice = slice_memory(unit_size) + BASE_MEMORY * isolated
    room = (running.max_memory - BASE_MEMORY) // of_slice - 1
    return max(0, min(running.num_proc, room))


def slice_memory(unit_size: int) -> int:
    """Bytes for one slice: seven times its text, for text, rows, ids, and the copy to write."""
    return 7 * min(unit_size, SLICE_BYTES)


def tokenize_slice(
    piece: Slice,
    directory: Path,
    encoder: Encoder,
    sources: Sequence[Source] = (),
    stop: threading.Event | None = None,
) -> TokenFile:
    """Write the token file of a slice and its receipt.

    The file gets its name only when it is complete.

    sources: those that the parts of a slice name; one that has changed is an InputError. stop: see
    `Make`.
    """
    import datasets

    path = directory / file_name(piece.unit, piece.slice)
    fingerprint = f"{piece.unit:08x}{piece.slice:08x}"
    encoded = Encoded(nothing := pa.table({}))
    numbers = piece.first_document + np.arange(len(piece.table))

    def encode(table: pa.Table) -> pa.Table:
        nonlocal encoded
        made = encoder.encode(table, numbers, stop)
        encoded = made._replace(table=nothing)  # whose memory is freed with the rows
        return made.table

    features = _features(piece.table.schema, encoder)
    temporary = temporary_name(path)
    rows = datasets.Dataset(datasets.table.InMemoryTable(piece.table), fingerprint=fingerprint)
    tokens = rows.with_format("arrow").map(
        encode,
        batched=True,
        batch_size=None,
        remove_columns=[name for name in READ if name in piece.table.column_names],
        features=features,
        keep_in_memory=True,
        load_from_cache_file=False,
        new_fingerprint=fingerprint,
    )
    parts = _with_skipped(piece, encoded.problems, encoder.parsing.on_error)
    encoded_table = tokens.data.table
    # Not written by `map`, which opens a file twice: ext4 then treats it as a replaced file and
    # writes it to disk at once.
    with (
        errors_named(temporary),
        pa.OSFile(str(temporary), "wb") as file,
        pa.ipc.new_stream(file, encoded_table.schema) as writer,
    ):
        writer.write_table(encoded_table)
    count = sum(len(chunk.values) for chunk in encoded_table["tokens"].chunks)
    del tokens, encoded_table
    receipt = TokenFile(
        **vars(piece.extent),
        tokens=count,
        verified=encoded.verified,
        parts=parts,
        cut=_cut(piece, encoded.removed),
        left_out=_left_out(piece, encoded.left_out),
        turns=_turns(piece, encoded.turns),
        bytes=temporary.stat().st_size,
        xxh3=file_xxh3(temporary),
    )
    try:  # now, because rows of a mapped file are read when they are encoded
        check_unchanged(sources[part.source] for part in (parts if sources else ()))
    except InputError:
        temporary.unlink()
        raise
    # Neither is synced to disk: after a power cut, a file without its receipt, or with a damaged
    # one, is made again. Syncing the receipt would make the disk write the tokens at once.
    temporary.replace(path)
    write_file(path.with_suffix(".json"), receipt_json(receipt), sync=False)
    return receipt


def _rows(piece: Slice) -> Iterator[tuple[str, Part, slice]]:
    """Each part of a slice, with the name of its source in receipts and its rows."""
    first = 0
    for part in piece.parts:
        yield str(part.source), part, slice(first, first + part.rows)
        first += part.rows


def _cut(piece: Slice, removed: NDArray[np.int64] | None) -> dict[str, tuple[int, int]]:
    """Documents and characters that truncate_at removed, by source; empty without the option."""
    if removed is None:
        return {}
    return {
        source: (int(np.count_nonzero(removed[rows])), int(removed[rows].sum()))
        for source, _, rows in _rows(piece)
    }


def _left_out(piece: Slice, texts: Sequence[CountedText]) -> dict[str, LeftOutCount]:
    """Text that the chat template does not write, by source. texts: of the slice, by row."""
    if not texts:
        return {}
    counts: dict[str, LeftOutCount] = {}
    for (source, _, rows), first_row in zip(_rows(piece), piece.first_rows, strict=True):
        gone = [text for text in texts if rows.start <= text.row < rows.stop]
        fields: dict[str, tuple[int, int]] = {}
        for text in gone:
            characters, tokens = fields.get(text.field, (0, 0))
            fields[text.field] = characters + text.characters, tokens + text.tokens
        if gone:
            example = (first_row + gone[0].row - rows.start, gone[0].message, gone[0].field)
            in_turns = sum(text.characters for text in gone if text.in_turn)
            counts[source] = LeftOutCount(len({t.row for t in gone}), fields, example, in_turns)
    return counts


def _turns(piece: Slice, counts: Sequence[Sequence[int] | None]) -> dict[str, TurnCounts]:
    """Counts of turns, by source. counts: of each row of the slice; empty where rows are whole."""
    return {source: sum_counts(counts[rows]) for source, _, rows in _rows(piece) if counts}


def _with_skipped(piece: Slice, problems: Mapping[int, Problem], on_error: str) -> tuple[Part, ...]:
    """Parts of the slice; rows that could not be encoded are counted as skipped.

    DocumentError if rows may not be skipped.
    """
    if not problems:
        return piece.parts
    counted = []
    for (_, part, rows), first_row in zip(_rows(piece), piece.first_rows, strict=True):
        bad = [row for row in sorted(problems) if rows.start <= row < rows.stop]
        if bad and on_error == "stop":
            row = first_row + bad[0] - rows.start
            raise DocumentError(part.source, row, problems[bad[0]].detail)
        skipped = Counter(part.skipped) + Counter(problems[row].reason for row in bad)
        counted.append(replace(part, skipped=dict(sorted(skipped.items()))))
    return tuple(counted)


def _features(schema: pa.Schema, encoder: Encoder) -> Any:
    """Features of the token file of a slice with these columns."""
    import datasets

    parsing = encoder.parsing
    features = {"tokens": datasets.Sequence(datasets.Value(encoder.tokenizer.id_type.name))}
    if parsing.is_rendered and encoder.tokenizing.train_on != "all":
        features["labels"] = datasets.Sequence(datasets.Value("int8"))
    if parsing.pair_columns:
        features["pair_split"] = datasets.Value("int32")
    if parsing.chats or parsing.splits_rows:
        features["turn_ids"] = datasets.Value("int32")
    if parsing.splits_rows:
        features["turn_rows"] = datasets.Value("int32")
    for column in schema:
        if column.name not in READ:
            is_list = pa.types.is_list(column.type)
            value = datasets.Value(number_type(column.type.value_type if is_list else column.type))
            features[column.name] = datasets.Sequence(value) if is_list else value
    return datasets.Features(features)


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """Switch off progress bars of `datasets`; restore the setting afterwards."""
    import datasets

    # Create this lock once: opening a file would create and delete it while `map` uses it in
    # another thread.
    datasets.utils.tqdm.get_lock()
    shown = datasets.utils.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
