"""Rows of a source: every format comes out as Arrow tables with the same columns.

text     string, the document; null where the row has none to use
second   string, with `pair_columns`: the other side of the row, null where text is
ids      list<int32>, in place of text with `input_ids_column`
problem  string, null or "reason: detail" (null, not_text, bad_json, bad_csv, bad_utf8, too_large, and those of
         carried.py)
group    string, only with `group_column`
labels   list<int32>, or list<int8> where it is a mask; and columns that `carry` names: see carried.py

Conversations are text too, rendered; beside it `trained` and `specials` say what is what in it: see masks.py.

Sources are opened through `datasets` in streaming form: nothing is cached in the user's home (but hub datasets, whose
cache is theirs), and `limit` reads no further than it must. Only what cannot be streamed is unpacked into `scratch`.
"""

import contextlib
import errno
import glob
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as pds
import pyarrow.parquet as pq

from packprep.carried import RowShape, carried_types, number_columns, text_type
from packprep.config import BuildConfig
from packprep.errors import InputError, system_error
from packprep.rowtext import as_rows, columns_read, text_columns
from packprep.schemas import FormatError, StoreError, is_url
from packprep.sources import COMPRESSED, Source, open_hub
from packprep.tokenizer import Tokenizer

if TYPE_CHECKING:
    from packprep.conversations import ConversationColumns
    from packprep.turns import TurnFinder

ROWS_PER_TABLE = 512  # a table of long documents must not be large: 512 books are 100 MB
# Parquet and Arrow are binary: packed once more they shrink a few times, a file of nothing 1,000 times.
_UNPACKED_BYTES, _UNPACKED_RATIO = 1 << 30, 100


TEXT_ROWS = RowShape()
_BESIDE: dict[str, Any] = {
    "tools": "tools",
    "variables": "chat_template_kwargs",
}  # columns that a conversation may have beside it


def read_rows(source: Source, config: BuildConfig, scratch: Path, shape: RowShape = TEXT_ROWS) -> Iterator[pa.Table]:
    """Tables of the columns above, in row order. Raises InputError naming the source."""
    config = config.reading(source.reading)
    read = [0]  # rows so far, as an error says
    with _readable(source, read), _unpacked(source, scratch) as path:
        chats = conversations_of(source, path, config, scratch) if config.chats else None
        for table in _open(source, path, config, scratch, chats).iter(batch_size=ROWS_PER_TABLE):
            if not read[0]:
                _check_columns(source, path, table, config, chats)
            read[0] += len(table)
            yield as_rows(table, config, shape, chats)
    if not read[0]:
        raise InputError(f"{source.name} holds no rows; expected at least one document")


@contextlib.contextmanager
def _readable(source: Source, read: Sequence[int] = (0,)) -> Iterator[None]:
    """What the readers of each format raise is theirs; the user needs the file's name. read: [rows so far]."""
    try:
        yield
    except (InputError, FormatError):
        raise
    except Exception as error:
        if isinstance(refused := system_error(error), StoreError):
            if refused.errno == errno.EBUSY:
                raise InputError(
                    f"{source.name} has changed since the build began: {refused.strerror}; build again from the start"
                ) from None
            raise StoreError(refused.errno or 0, str(refused.strerror), source.name) from None
        if refused is not None:
            raise OSError(refused.errno, refused.strerror, source.name) from None  # no fault of the source
        behind = f" (behind row {read[0] - 1})" if read[0] else ""
        raise InputError(f"{source.name} {_reason(error, source)}{behind}") from None


def row_shape(sources: Sequence[Source], config: BuildConfig, scratch: Path, tokenizer: Tokenizer) -> RowShape:
    """What rows become: carried columns typed by the first rows of the first source, conversations by the template."""
    source = sources[0]
    config = config.reading(source.reading)
    names = number_columns(config)
    chats = types = None
    if config.carry or config.chats:
        with _readable(source), _unpacked(source, scratch) as path:
            chats = conversations_of(source, path, config, scratch) if config.chats else None
            if source.kind == "json":
                types = _json_types(source, names)
            elif config.carry:
                table = next(_open(source, path, config, scratch, chats).iter(batch_size=ROWS_PER_TABLE))
                _check_columns(source, path, table, config, chats)
                types = {name: text_type(table[name]) if source.kind == "csv" else table[name].type for name in names}
    return RowShape(
        carried=carried_types(types or {}, config, source.name),
        vocab_size=tokenizer.vocab_size,
        finder=finder_of(tokenizer, config),
        notes=(f"{source.name}: {replace(chats, tools=None).said}",) if chats is not None else (),
    )


def finder_of(tokenizer: Tokenizer, config: BuildConfig) -> "TurnFinder | None":
    """What renders conversations; None where the tokenizer is of a build without them."""
    if tokenizer.template is None:
        return None
    from packprep.masks import exact_encoder
    from packprep.turns import TurnFinder

    return TurnFinder(tokenizer.template, exact_encoder(tokenizer.json).specials, config.train_on)


def conversations_of(
    source: Source, path: Path | str | None, config: BuildConfig, scratch: Path
) -> "ConversationColumns":
    """Where a source has its conversations. Raises InputError where it has none."""
    names = _names_in(source, path)
    if names is None:
        names = next(_open(source, path, config, scratch, None).iter(batch_size=1)).column_names
    return find_columns(names, config, source.name, any_row=source.kind == "json")


def find_columns(
    names: Sequence[str], config: BuildConfig, where: str, *, any_row: bool = False
) -> "ConversationColumns":
    """Which of these columns hold conversations. any_row: a later row may have tools or variables that these lack."""
    from packprep.conversations import ConversationColumns, find_conversations

    if config.pair_columns:
        prompt = () if config.prompt_column is None else (config.prompt_column,)
        for name in (*prompt, *config.pair_columns):
            if name not in names:
                raise InputError(f"{where}: there is no column {name!r}; there are {', '.join(names)}")
        beside = {key: name for key, name in _BESIDE.items() if any_row or name in names}
        return ConversationColumns(
            kind="pair" if prompt else "messages", names=(*prompt, *config.pair_columns), **beside
        )
    try:
        found = find_conversations(
            names,
            messages_column=None if config.messages_column == "auto" else config.messages_column,
            prompt_column=config.prompt_column,
            response_column=config.response_column,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if found is None:
        raise InputError(
            f"{where} has no conversations that are recognised; it has {', '.join(names) or 'no columns'}: choose with "
            "--messages-column, or --prompt-column and --response-column"
        )
    return replace(found, **_BESIDE) if any_row else found


def _json_types(source: Source, names: Sequence[str]) -> dict[str, pa.DataType]:
    from packprep.jsonl import first_types

    with source.plain() as file:
        types = first_types(file, names, source.name)
    if empty := [name for name in names if pa.types.is_null(types[name])]:
        there = empty
        with contextlib.suppress(InputError):  # of rows that are no JSON: reading them says so
            there = _first_keys(source)
        _check_names(source, there, empty, ())
    return types


@contextlib.contextmanager
def _unpacked(source: Source, scratch: Path) -> Iterator[Path | str | None]:
    """The file to open: the source's own, or a plain copy of one that its reader cannot stream as it is."""
    away = is_url(source.path or "")
    if source.path is None or not (source.compression or away) or source.kind in ("json", "csv", "text"):
        yield source.path
        return
    if away and source.kind == "saved":
        from packprep.storesources import fetched

        with fetched(source, scratch) as folder:
            yield folder
        return
    most = max(_UNPACKED_BYTES, _UNPACKED_RATIO * source.bytes)
    with (
        source.plain() as packed,
        tempfile.NamedTemporaryFile(dir=scratch, suffix=f".{source.suffix}") as copy,
    ):
        while block := packed.read(1 << 20):
            copy.write(block)
            if source.compression and copy.tell() > most:
                raise InputError(f"{source.name} unpacks to more than {most:,} bytes, which no {source.kind} file does")
        copy.flush()
        yield Path(copy.name)


def _open(
    source: Source, path: Path | str | None, config: BuildConfig, scratch: Path, chats: "ConversationColumns | None"
) -> Any:
    """The rows of a source as a `datasets` object in Arrow format."""
    import datasets

    columns = columns_read(config, chats)

    if source.kind == "hub":
        return open_hub(source.name, config).with_format("arrow")
    if source.kind == "saved":
        return datasets.load_from_disk(str(path)).with_format("arrow")
    options: dict[str, Any] = {"cache_dir": str(scratch)}
    ours = {"columns": tuple(columns), "source": source.name, "max_row_size": config.max_row_size}
    ours |= {"file": str(path), "source_version": source.version}
    if source.kind == "json":
        from packprep.jsonl import JsonRows, number_types

        names = number_columns(config)
        numbers = number_types(_json_types(source, names)) if names else ()
        nested = chats.wanted if chats is not None else ()
        rows = JsonRows(numbers=numbers, nested=nested, **ours, **options).as_streaming_dataset(split="train")
    elif source.kind == "csv":
        from packprep.csvrows import CsvRows

        rows = CsvRows(delimiter=source.delimiter, **ours, **options).as_streaming_dataset(split="train")
    elif source.kind == "text":
        from packprep.textrows import TextRows

        rows = TextRows(sample_by=config.sample_by, **ours, **options).as_streaming_dataset(split="train")
    elif source.kind == "arrow":
        from packprep.arrowrows import ArrowRows

        rows = ArrowRows(**ours, **options).as_streaming_dataset(split="train")
    else:
        if source.kind == "parquet":
            there = [name for name in columns if name in pq.read_schema(path).names]
            checked = pds.ParquetFragmentScanOptions(page_checksum_verification=True)  # where the file has checksums
            options |= {"batch_size": ROWS_PER_TABLE, "columns": there or None, "fragment_scan_options": checked}
        options |= {"data_files": [glob.escape(str(path))]}
        rows = datasets.load_dataset(source.kind, split="train", streaming=True, **options)
    return rows.with_format("arrow")


def _check_columns(
    source: Source, path: Path | str | None, table: pa.Table, config: BuildConfig, chats: "ConversationColumns | None"
) -> None:
    """JSON rows name their columns one by one, so there a column with no value is looked for in the first row."""
    texts = text_columns(config)
    beside = (chats.tools, chats.variables) if chats is not None else ()
    wanted = [name for name in columns_read(config, chats) if name not in beside]
    if source.kind == "json" and (
        all(table[name].null_count < len(table) for name in wanted) or table["problem"][0].is_valid
    ):
        return
    names = _names_in(source, path)
    _check_names(source, table.column_names if names is None else names, wanted, texts)


def _names_in(source: Source, path: Path | str | None) -> Sequence[str] | None:
    """Names of the columns of a file; None of a dataset, whose tables have them all."""
    if source.kind == "json":
        return _first_keys(source)
    if source.kind == "csv":
        return _csv_header(source)
    if source.kind == "text":
        return ["text"]
    if source.kind == "parquet":
        names: list[str] = pq.read_schema(path).names
        return names
    if source.kind == "arrow":
        from packprep.arrowrows import column_names

        return column_names(str(path))
    return None


def _check_names(source: Source, there: Sequence[str], wanted: Sequence[str], texts: Sequence[str]) -> None:
    """InputError unless each wanted column is there once. texts: those that an option for text chooses."""
    for name in wanted:
        if there.count(name) != 1:
            options = "--text-column or --text-template" if name in texts else "the option that names it"
            if name in texts and {"messages", "conversations"} & set(there):
                options += ", or --messages-column auto for conversations"
            found = "has no column" if name not in there else "has more than one column"
            listed = ", ".join(there) or "none"
            raise InputError(f"{source.name} {found} {name!r}; it has {listed}: choose with {options}")


def _csv_header(source: Source) -> list[str]:
    from packprep.csvrows import CsvReader

    with source.plain() as file:
        header = CsvReader(file, source.delimiter, 1 << 20, source.name).header()
        return [name.encode("utf-8", "replace").decode() for name in header]


def _first_keys(source: Source) -> list[str]:
    """Names in the first row of a JSON file that has any."""
    from packprep.jsonl import first_keys

    with source.plain() as file:
        names = first_keys(file, source.name)
    if names is None:
        raise InputError(f"{source.name} has no JSON object in its first rows; expected an object in each row")
    return names


def line_of_row(source: Source, row: int) -> int | None:
    """Line of a row of a JSON lines file, from 1; None where rows are not lines. Reads the file up to there."""
    if source.kind != "json" or source.path is None:
        return None
    from packprep.rowbuilder import numbered_lines

    with source.plain() as file:
        array = False
        for place, (number, line) in enumerate(numbered_lines(file)):
            array = array or (place == 0 and line.removeprefix(b"\xef\xbb\xbf")[:1] == b"[")
            if place == row:
                return None if array or (row == 0 and line == b"{") else number
    return None


def _damaged_at(source: Source) -> int:
    """Byte of a compressed file by which its reader stumbled; it reads some ahead."""
    with pa.PythonFile(source.raw()) as file:
        stream = pa.CompressedInputStream(file, COMPRESSED[source.compression])
        with contextlib.suppress(OSError, pa.ArrowException):
            while stream.read(1 << 16):
                pass
        return int(file.tell())


def _reason(error: Exception, source: Source) -> str:
    text = " ".join(str(error).split())[:300]
    if source.compression and "Truncated compressed stream" in text:
        return f"is cut off at byte {source.bytes:,}: the compressed data ends early; fetch the file again"
    if source.compression and ("zlib" in text or "ZSTD" in text):
        return f"does not decompress by byte {_damaged_at(source):,}: {text}; fetch the file again"
    return f"cannot be read as {source.kind}: {text or type(error).__name__}"
