"""The tokenizing stage: one split of the input to token files, through a batched `datasets.map`."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..read.reading import read
from ..read.types import Batch, Source, Split
from ..read.values import one_array
from ..schemas.files import Files
from .encode import encode
from .engine import Engine
from .store import TokenFile, read_receipt, write_tokens
from .tokenizer import Tokenizer

SPLIT_BYTES = 16_000_000


def tokenize_split(
    number: int,
    split: Split,
    sources: Sequence[Source],
    tokenizer: Tokenizer,
    engine: Engine | None,
    place: Files,
    most: int | None = None,
    synced: bool = True,
    **reading: Any,
) -> list[TokenFile]:
    """Token files of a split, which are written unless they are there.

    Each 16 MB of its text is a file. engine: None if rows are token ids. most: files that are made
    of the split; None for all. synced: see `write_tokens`. reading: see `read`.
    """
    files: list[TokenFile] = []
    for chunk, last in _chunks(read(split, sources, **reading)):
        last = last or len(files) + 1 == most
        name = f"tokens-{number:06d}-{len(files):03d}.json"
        if (done := read_receipt(place, name)) is None or done.last != last:
            batch, facts = _encoded(chunk, tokenizer, engine)
            facts = {"split": number, "number": len(files), "last": last, **facts}
            done = write_tokens(place, batch, facts, synced=synced)
        files.append(done)
        if last:
            break
    return files


def _chunks(batches: Iterator[Batch]) -> Iterator[tuple[list[Batch], bool]]:
    """Batches put together to files of about 16 MB of text, each of which has the same columns.

    With each, whether it is the last; there is one at least, which may be of nothing.
    """
    chunk, size = list[Batch](), 0
    for batch in batches:
        if size >= SPLIT_BYTES or (chunk and batch.documents.schema != chunk[0].documents.schema):
            yield chunk, False
            chunk, size = [], 0
        chunk.append(batch)
        size += _size(batch.documents)
    yield chunk, True


def _size(table: pa.Table) -> int:
    """Bytes of text, or four for each id."""
    if "text" in table.column_names:
        return pc.sum(pc.binary_length(table["text"])).as_py() or 0
    if "pieces" in table.column_names:
        pieces = one_array(pc.list_flatten(table["pieces"]))
        text, ids = pc.binary_length(pieces.field("text")), pieces.field("ids").flatten()
        return (pc.sum(text).as_py() or 0) + 4 * len(ids)
    return 4 * (pc.sum(pc.list_value_length(table["ids"])).as_py() or 0)


def _encoded(
    chunk: Sequence[Batch], tokenizer: Tokenizer, engine: Engine | None
) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """The tokens of a chunk, whose rows are numbered in it, and what its receipt says of them."""
    tables, rows = [], Counter[int]()
    turns, left_out = Counter[str](), Counter[str]()
    skipped, cut, unread = dict[int, Counter[str]](), dict[int, Any](), dict[int, Any]()
    for batch in chunk:
        table, source = batch.documents, batch.source
        row = pc.add(table["row"], pa.scalar(rows.total(), pa.int32()))
        tables.append(table.set_column(table.column_names.index("row"), "row", row))
        rows[source] += batch.rows
        turns.update(batch.turns)
        left_out.update(batch.left_out)
        if batch.problems:
            reasons = (problem.reason for problem in batch.problems.values())
            skipped.setdefault(source, Counter()).update(reasons)
        if any(batch.cut):
            cut[source] = [a + b for a, b in zip(cut.get(source, (0, 0)), batch.cut, strict=True)]
        if batch.unread:
            unread[source] = [*dict.fromkeys([*unread.get(source, ()), *batch.unread])]
    table = pa.concat_tables(tables) if tables else _nothing(engine)
    return mapped(table, tokenizer, engine), {
        "rows": dict(rows),
        "text_bytes": _size(table),
        "skipped": {source: dict(reasons) for source, reasons in skipped.items()},
        "cut": cut,
        "unread": unread,
        "turns": dict(turns),
        "left_out": dict(left_out),
    }


def _nothing(engine: Engine | None) -> pa.Table:
    """A table of no documents."""
    of = {"text": pa.large_string()} if engine else {"ids": pa.list_(pa.int32())}
    columns = {**of, "row": pa.int32(), "part": pa.int32()}
    return pa.table({name: pa.array([], kind) for name, kind in columns.items()})


def import_datasets() -> None:
    """Begin to import `datasets`, which takes most of a second, beside other work."""
    threading.Thread(target=_import_datasets).start()


def _import_datasets() -> None:
    with contextlib.suppress(Exception):  # `mapped` raises it
        import datasets  # noqa: F401


def mapped(table: pa.Table, tokenizer: Tokenizer, engine: Engine | None) -> pa.RecordBatch:
    """`encode` of a table in memory, called by `datasets.map`."""
    import datasets

    made = [name for name in ("text", "ids", "pieces") if name in table.column_names]
    columns = {"tokens": pa.list_(pa.from_numpy_dtype(tokenizer.id_type))}
    columns |= {spec.name: spec.type for spec in table.schema if spec.name not in made}
    if "pieces" in made:
        from ..chat.types import PIECES

        if table.schema.field("pieces").type == PIECES:
            columns["mask"] = pa.list_(pa.int8())
    if not len(table):
        return pa.RecordBatch.from_pylist([], pa.schema(list(columns.items())))
    features = datasets.Features.from_arrow_schema(pa.schema(list(columns.items())))
    rows = datasets.Dataset(datasets.table.InMemoryTable(table), fingerprint="packprep")

    def batch(rows: pa.Table) -> pa.Table:
        tokens = encode(rows, tokenizer, engine)
        if engine is not None:
            engine.compare_sample(rows, tokens, tokenizer)
        return tokens

    with quiet_datasets:
        tokens = rows.with_format("arrow").map(
            batch,
            batched=True,
            batch_size=None,
            writer_batch_size=len(table),
            remove_columns=made,
            features=features,
            keep_in_memory=True,
            load_from_cache_file=False,
            new_fingerprint="packprep-tokens",
        )
    result = tokens.data.table
    return pa.record_batch([one_array(result[name]) for name in columns], names=list(columns))


class _NoBars:
    """Switches off progress bars of `datasets` while any thread is in it."""

    def __init__(self) -> None:
        self.lock, self.users, self.shown = threading.Lock(), 0, True

    def __enter__(self) -> None:
        import datasets

        with self.lock:
            datasets.utils.tqdm.get_lock()  # made once, before threads need it
            if not self.users:
                self.shown = datasets.utils.is_progress_bar_enabled()
                datasets.disable_progress_bars()
            self.users += 1

    def __exit__(self, *error: object) -> None:
        import datasets

        with self.lock:
            self.users -= 1
            if self.shown and not self.users:
                datasets.enable_progress_bars()


quiet_datasets = _NoBars()
