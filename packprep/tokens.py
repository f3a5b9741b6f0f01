"""Text to token files: one slice of a unit in, one Arrow file of `list<int32>` out, through a batched `datasets.map`.

`map` sees a table of text and gives back a table of tokens; no Python int stands between. A token file keeps every
row of its slice; an empty document and a skipped row have no tokens. Beside it lies a receipt with its digest.

Beside `tokens` a file has what its rows bring: `group` (string), `labels` (list<int32> with NO_LOSS where there is no
loss, or list<int8>, 1 where there is one), carried columns (lists with a value per token, numbers with one per row).

With `keep_tokens` the files live in a store that outlasts the build, under a key made of everything that decides them
(source digests, tokenizer, text options): another max_length or strategy finds them again, another tokenizer cannot.
"""

import contextlib
import functools
import json
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.config import BuildConfig
from packprep.errors import InputError
from packprep.gather import add_ends, make_room
from packprep.parity import EngineChoice, verify_batch
from packprep.schemas import NO_LOSS, canonical_json, digest_of, file_digest, same_file, temporary_name, write_file
from packprep.sources import Source
from packprep.tokenizer import Tokenizer
from packprep.units import SLICE_BYTES, Part, Slice, Start, ranges, text_bytes

# Text given to the engine at once: enough for its threads, and the memory of one batch serves the next.
BATCH_BYTES = 4 << 20
# Libraries, compiled kernels and an engine with its caches.
BASE_MEMORY = 600_000_000
READ = (
    "text",
    "ids",
    "trained",
    "specials",
    "second",
    "second_trained",
    "second_specials",
)  # columns of rows that become tokens and labels
_FEATURES = {"float": "float32", "double": "float64"}  # what Arrow and `datasets` name differently
STORED = "files.json"  # of a store that is finished
STORE_VERSION = 2  # raised when the same inputs would give other token files


class DocumentError(InputError):
    """A row that cannot be encoded, found only now. source: its number. row: in that source. The caller knows names."""

    def __init__(self, source: int, row: int, detail: str) -> None:
        super().__init__(detail)
        self.source, self.row, self.detail = source, row, detail


class Piece(Protocol):
    """A slice, tokenized or not."""

    @property
    def unit(self) -> int: ...
    @property
    def slice(self) -> int: ...
    @property
    def text_bytes(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class TokenFile:
    """Receipt of one tokenized slice. cut: documents and characters that truncate_at took, by source."""

    unit: int
    slice: int
    first_document: int
    documents: int
    text_bytes: int
    tokens: int
    verified: int  # documents that the reference engine encoded too
    parts: tuple[Part, ...]
    cut: dict[str, tuple[int, int]]
    bytes: int
    sha256: str

    @property
    def name(self) -> str:
        return file_name(self.unit, self.slice)

    @property
    def end(self) -> int:
        """Number of the first document after it."""
        return self.first_document + self.documents

    def remove(self, directory: Path) -> None:
        (directory / self.name).unlink()
        (directory / self.name).with_suffix(".json").unlink()


def file_name(unit: int, number: int) -> str:
    """Token file of slice `number` of a unit."""
    return f"unit-{unit:06d}-{number:03d}.arrow"


def rows_of_sources(files: Sequence[TokenFile], sources: int) -> list[int]:
    """Rows read from each source."""
    rows = [0] * sources
    for file in files:
        for part in file.parts:
            rows[part.source] += part.rows
    return rows


def tokens_key(sources: Sequence[Source], tokenizer: Tokenizer, config: BuildConfig) -> str:
    """Digest of everything that decides the token files."""
    options = config.identity()
    names = (
        "text_column", "text_template", "sample_by", "limit", "on_error", "unit_size", "max_row_size",
        "parse_special_tokens", "truncate_at", "group_column", "input_ids_column", "labels_column", "loss_mask_column",
        "carry", "messages_column", "prompt_column", "response_column", "pair_columns",
        "train_on",
    )  # fmt: skip
    return digest_of(
        {
            "version": STORE_VERSION,
            "sources": [{"sha256": s.sha256, "kind": s.kind} | s.described() for s in sources],
            "tokenizer": tokenizer.facts(),
            "options": {name: options[name] for name in names} | {"max_tokens": config.tokens_to_read},
        }
    )


def stored(directory: Path, *, digests: bool = True) -> list[TokenFile] | None:
    """The token files of a finished store; None where it is not finished or a file has changed.

    digests: read every file to see whether a byte has changed, not its size alone.
    """
    try:
        names = json.loads((directory / STORED).read_bytes())
        found = [read_receipt(directory, file_name(int(unit), int(number)), digests=digests) for unit, number in names]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return None if None in found else [file for file in found if file]


def committed(directory: Path) -> list[TokenFile]:
    """Token files from the beginning of the input up to the first that is missing or has changed, digests checked."""
    names = sorted(path.with_suffix(".arrow").name for path in directory.glob("unit-*.json"))
    done: list[TokenFile] = []
    with ThreadPoolExecutor(2) as pool:
        for file in pool.map(functools.partial(read_receipt, directory), names):
            if file is None or file.first_document != (done[-1].end if done else 0):
                break
            done.append(file)
    return done


def start_after(done: Sequence[TokenFile], sources: int, config: BuildConfig) -> Start:
    """Where reading goes on after these token files."""
    if not done:
        return Start()
    last = done[-1]
    before = sum(file.text_bytes for file in done if file.unit == last.unit)
    ended = before >= config.unit_size
    return Start(
        unit=last.unit + ended, number=0 if ended else last.slice + 1, first_document=last.end,
        before=0 if ended else before, rows=rows_of_sources(done, sources),
    )  # fmt: skip


def read_receipt(directory: Path, name: str, *, digests: bool = True) -> TokenFile | None:
    """The receipt of a token file, if there is one and the file is as it says, its size alone without digests."""
    path = directory / name
    try:
        receipt = receipt_of(json.loads(path.with_suffix(".json").read_bytes()))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
    same = same_file(path, receipt.bytes, receipt.sha256) if digests else _size(path) == receipt.bytes
    return receipt if receipt.name == name and same else None


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def receipt_of(facts: dict[str, Any]) -> TokenFile:
    """The receipt whose plain JSON values these are."""
    parts = tuple(Part(**part) for part in facts["parts"])
    cut = {key: tuple(cut) for key, cut in facts["cut"].items()}
    return TokenFile(**facts | {"parts": parts, "cut": cut})


def tokenize(
    slices: Iterator[Slice],
    directory: Path,
    engine: Callable[[], EngineChoice | None],
    tokenizer: Tokenizer,
    config: BuildConfig,
    report: Callable[[TokenFile], None],
    before: Sequence[TokenFile] = (),
    elsewhere: Callable[[Slice, threading.Event], TokenFile] | None = None,
) -> list[TokenFile]:
    """Token files of all slices, as many at a time as `num_proc` and `max_memory` allow; what is there is not remade.

    before: token files that are there of what comes before `slices`. `report` hears of each new one, in order.
    elsewhere: makes a token file in another process, in place of a thread of this one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    done: list[TokenFile] = []
    running: deque[Future[TokenFile]] = deque()
    stop = threading.Event()
    total = 0
    most_tokens = config.tokens_to_read
    last: int | None = None  # the unit that reaches them

    def take(file: TokenFile) -> bool:
        """False for one that ran ahead of the end."""
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

    def make(part: Slice) -> TokenFile:
        if (file := finished_slice(part, directory)) is not None:
            return file
        if elsewhere is not None:
            return elsewhere(part, stop)
        return tokenize_slice(part, directory, engine(), tokenizer, config, stop)

    for file in before:
        take(file)

    # Threads, unless isolation is asked for: engines release the GIL, and two processes were 1.8 times slower.
    ahead = slices_ahead(config)
    with quiet_datasets(), ThreadPoolExecutor(max(ahead, 1)) as pool:
        try:
            for part in slices:
                if last is not None and part.unit > last:
                    break
                running.append(pool.submit(make, part))
                collect(ahead)
            collect(0)
        finally:
            stop.set()
            for future in running:
                future.cancel()
    return done


def seal(directory: Path, files: Sequence[Piece]) -> None:
    """Write down that these are the token files of the whole input; see `stored`."""
    write_file(directory / STORED, canonical_json([[file.unit, file.slice] for file in files]))


def slices_ahead(config: BuildConfig) -> int:
    """Slices that may be tokenized while the next one is read: `num_proc`, or fewer where memory is short."""
    room = (config.max_memory - BASE_MEMORY) // (slice_memory(config) + BASE_MEMORY * config.isolated) - 1
    return max(0, min(config.num_proc, room))


def slice_memory(config: BuildConfig) -> int:
    """Seven times its text: the text, its rows, their ids, and the copy that is written."""
    return 7 * min(config.unit_size, SLICE_BYTES)


def finished_slice(part: Slice, directory: Path) -> TokenFile | None:
    """The receipt of this slice's token file, if it is there."""
    file = read_receipt(directory, file_name(part.unit, part.number))
    facts = (part.first_document, len(part.table), part.text_bytes)
    return file if file and (file.first_document, file.documents, file.text_bytes) == facts else None


def tokenize_slice(
    part: Slice,
    directory: Path,
    engine: EngineChoice | None,
    tokenizer: Tokenizer,
    config: BuildConfig,
    stop: threading.Event | None = None,
) -> TokenFile:
    """Write the token file of a slice and its receipt. The file appears under its name only when it is whole.

    engine: None where rows are token ids. stop: set by another thread, ends the work within a batch by CancelledError,
    so that Ctrl-C need not wait.
    """
    import datasets

    path = directory / file_name(part.unit, part.number)
    fingerprint = f"{part.unit:08x}{part.number:08x}"
    cut: dict[str, tuple[int, int]] = {}
    verified = 0
    parts = part.parts
    numbers = part.first_document + np.arange(len(part.table))
    pattern = re.compile(config.truncate_at) if config.truncate_at is not None else None

    def encode(table: pa.Table) -> pa.Table:
        nonlocal verified, parts
        if pattern is not None:
            table, counted = cut_text(table, pattern, part.parts)
            cut.update(counted)
        encoded = encode_table(table, numbers, engine, tokenizer, config, stop)
        verified, parts = encoded.verified, _with_skipped(part, encoded.problems, config)
        return encoded.table

    features = _features(part.table.schema, config)
    temporary = temporary_name(path)
    rows = datasets.Dataset(datasets.table.InMemoryTable(part.table), fingerprint=fingerprint)
    tokens = rows.with_format("arrow").map(
        encode,
        batched=True,
        batch_size=None,
        remove_columns=[name for name in READ if name in part.table.column_names],
        features=features,
        cache_file_name=str(temporary),
        load_from_cache_file=False,
        new_fingerprint=fingerprint,
    )
    count = sum(len(chunk.values) for chunk in tokens.data["tokens"].chunks)
    del tokens
    receipt = TokenFile(
        unit=part.unit, slice=part.number, first_document=part.first_document, documents=len(part.table),
        text_bytes=part.text_bytes, tokens=count, verified=verified, parts=parts, cut=cut,
        bytes=temporary.stat().st_size, sha256=file_digest(temporary),
    )  # fmt: skip
    # Not synced to disk: a file that a power cut damages does not match its receipt and is made again.
    temporary.replace(path)
    write_file(path.with_suffix(".json"), canonical_json(asdict(receipt)))
    return receipt


def _with_skipped(given: Slice, problems: Mapping[int, str], config: BuildConfig) -> tuple[Part, ...]:
    """The parts with the rows counted that could not be encoded; DocumentError where none may be skipped."""
    if not problems:
        return given.parts
    found, first = [], 0
    for part, first_row in zip(given.parts, given.first_rows, strict=True):
        mine = [row for row in sorted(problems) if first <= row < first + part.rows]
        if mine and config.on_error == "stop":
            raise DocumentError(part.source, first_row + mine[0] - first, problems[mine[0]].split(": ", 1)[1])
        skipped = Counter(part.skipped) + Counter(problems[row].split(": ", 1)[0] for row in mine)
        found.append(replace(part, skipped=dict(sorted(skipped.items()))))
        first += part.rows
    return tuple(found)


def _features(schema: pa.Schema, config: BuildConfig) -> Any:
    """The columns of the token file of a slice with these columns."""
    import datasets

    features = {"tokens": datasets.Sequence(datasets.Value("int32"))}
    if config.chats and config.train_on != "all":
        features["labels"] = datasets.Sequence(datasets.Value("int8"))
    if config.pair_columns:
        features["pair_split"] = datasets.Value("int32")
    for column in schema:
        if column.name not in READ:
            is_list = pa.types.is_list(column.type)
            value = datasets.Value(
                _FEATURES.get(str(kind := column.type.value_type if is_list else column.type), str(kind))
            )
            features[column.name] = datasets.Sequence(value) if is_list else value
    return datasets.Features(features)


class Encoded(NamedTuple):
    """table: as a token file has it. verified: documents compared with the reference. problems: "reason: detail" of
    rows that could not be encoded, by place; they have no tokens."""

    table: pa.Table
    verified: int = 0
    problems: Mapping[int, str] = {}


def encode_table(
    table: pa.Table,
    numbers: NDArray[np.int64],
    engine: EngineChoice | None,
    tokenizer: Tokenizer,
    config: BuildConfig,
    stop: threading.Event | None = None,
) -> Encoded:
    """`text` to `tokens`, list<int32> with BOS and EOS, other columns kept; null text has no tokens.

    numbers: [documents], which decide what is compared with the reference. engine: None where the table has `ids` in
    place of text.
    """
    if config.pair_columns:
        sides = _encode(_sides(table), np.repeat(numbers, 2), engine, tokenizer, config, stop)
        return _joined(table, sides)
    return _encode(table, numbers, engine, tokenizer, config, stop)


def _encode(
    table: pa.Table,
    numbers: NDArray[np.int64],
    engine: EngineChoice | None,
    tokenizer: Tokenizer,
    config: BuildConfig,
    stop: threading.Event | None,
) -> Encoded:
    if engine is None:
        return Encoded(_with_ends(table, tokenizer))
    if config.chats:
        return _encode_chats(table, numbers, engine, tokenizer, config, stop)
    bos, eos = _end_ids(tokenizer)
    chunks, verified = [], 0
    for first, last in ranges(text_bytes(table["text"]), BATCH_BYTES):
        if stop is not None and stop.is_set():
            raise CancelledError
        text = pa.concat_arrays(table["text"].slice(first, last - first).chunks)
        text = text.fill_null("") if text.null_count else text
        ids, offsets = engine.engine.encode(text)
        verified += verify_batch(
            engine.engine, ids, offsets, text, numbers[first:last], engine.reference,
            share=config.verify_engine, seed=config.seed,
        )  # fmt: skip
        ids, offsets = add_ends(ids, offsets, bos, eos)
        if len(ids) >= 2**31:
            raise InputError(f"document {numbers[first]:,} has {len(ids):,} tokens, more than an Arrow list holds")
        chunks.append(pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(ids)))
    tokens = pa.chunked_array(chunks, pa.list_(pa.int32()))
    return Encoded(table.drop_columns(["text"]).append_column("tokens", tokens), verified)


def _sides(table: pa.Table) -> pa.Table:
    """Both sides of pairs as rows, 2 [documents]: first, second, first, second, ..."""
    names = [name for name in ("text", "trained", "specials") if name in table.column_names]
    seconds = ["second" if name == "text" else f"second_{name}" for name in names]
    both = pa.concat_tables([table.select(names), table.select(seconds).rename_columns(names)])
    places = np.arange(2 * len(table)).reshape(2, -1).T.ravel()
    return both.take(pa.array(places))


def _joined(table: pa.Table, sides: Encoded) -> Encoded:
    """Rows of pairs again: the ids of both sides one behind the other, and how many the first has."""
    rest = table.drop_columns([name for name in READ if name in table.column_names])
    for name in sides.table.column_names:
        values, offsets = _flat(_one(sides.table[name]))
        rest = rest.append_column(name, _lists(values, offsets[::2]))
        if name == "tokens":
            rest = rest.append_column("pair_split", pa.array((offsets[1::2] - offsets[:-1:2]).astype(np.int32)))
    return Encoded(rest, sides.verified, {row // 2: problem for row, problem in sides.problems.items()})


def _one(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)


def _encode_chats(
    table: pa.Table,
    numbers: NDArray[np.int64],
    engine: EngineChoice,
    tokenizer: Tokenizer,
    config: BuildConfig,
    stop: threading.Event | None,
) -> Encoded:
    """Rendered conversations to `tokens` and, unless everything is trained, `labels`: 1 where a token is."""
    from packprep.masks import encode_chats, exact_encoder

    tokens, masks, verified = [], [], 0
    problems: dict[int, str] = {}
    for first, last in ranges(text_bytes(table["text"]), BATCH_BYTES):
        if stop is not None and stop.is_set():
            raise CancelledError
        batch = table.slice(first, last - first).combine_chunks()
        made = encode_chats(batch, engine.engine, exact_encoder(tokenizer.json))
        problems |= {first + row: problem for row, problem in made.problems.items()}
        tokens.append(_lists(made.ids, made.offsets))
        masks.append(_lists(made.trained.astype(np.int8), made.offsets))
        # A row that spells special tokens has other ids than the engines give: the template's only are parsed.
        is_plain = batch["specials"].is_null().to_numpy()
        plain, lengths = np.flatnonzero(is_plain), np.diff(made.offsets)
        ids = made.ids if is_plain.all() else made.ids[np.repeat(is_plain, lengths)]
        text = batch["text"].combine_chunks().fill_null("").take(pa.array(plain))
        verified += verify_batch(
            engine.engine, ids, np.append(0, np.cumsum(lengths[plain])), text, numbers[first:last][plain],
            engine.reference, share=config.verify_engine, seed=config.seed,
        )  # fmt: skip
    rest = table.drop_columns(["text", "trained", "specials"])
    rest = rest.append_column("tokens", pa.chunked_array(tokens, pa.list_(pa.int32())))
    if config.train_on != "all":
        rest = rest.append_column("labels", pa.chunked_array(masks, pa.list_(pa.int8())))
    return Encoded(rest, verified, problems)


def _with_ends(table: pa.Table, tokenizer: Tokenizer) -> pa.Table:
    """`ids` to `tokens`, with BOS and EOS where they were asked for; other lists keep in step with them.

    An added BOS has no loss, an added EOS has one where the token before it has; carried columns have 0 there.
    """
    bos, eos = _end_ids(tokenizer)
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    lists = {name: column for name, column in columns.items() if pa.types.is_list(column.type)}
    if bos >= 0 or eos >= 0:
        flat = {name: _flat(column) for name, column in lists.items()}
        ids, offsets = flat["ids"]
        tokens, wider = add_ends(ids, offsets, bos, eos)
        lists["ids"] = _lists(tokens, wider)
        full = np.diff(offsets) > 0
        for name, (values, _) in flat.items():
            if name == "ids":
                continue
            nothing = NO_LOSS if name == "labels" and values.dtype == np.int32 else 0
            out = np.full(len(tokens), nothing, values.dtype)
            make_room(values, offsets, wider, int(bos >= 0), out)
            if name == "labels" and eos >= 0:
                last = wider[1:][full] - 1
                out[last] = np.where(out[last - 1] != nothing, 1 if nothing == 0 else eos, nothing)
            lists[name] = _lists(out, wider)
    columns |= lists
    return pa.table({"tokens": columns.pop("ids")} | columns)


def _end_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """Ids of BOS and EOS, -1 for none."""
    bos, eos = (token.id if token else -1 for token in (tokenizer.bos, tokenizer.eos))
    return bos, eos


def _flat(lists: pa.ListArray) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Values and int64 offsets, from 0."""
    offsets = lists.offsets.to_numpy().astype(np.int64)
    values: NDArray[Any] = lists.values.to_numpy()[offsets[0] : offsets[-1]]
    return values, offsets - offsets[0]


def _lists(values: NDArray[Any], offsets: NDArray[np.int64]) -> pa.ListArray:
    if len(values) >= 2**31:
        raise InputError(f"the documents of a slice have {len(values):,} tokens, more than an Arrow list holds")
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values))


def cut_text(
    table: pa.Table, pattern: "re.Pattern[str]", parts: Sequence[Part]
) -> tuple[pa.Table, dict[str, tuple[int, int]]]:
    """Text up to the first match, and by source how many documents and characters that took."""
    texts = table["text"].to_pylist()
    matches = [pattern.search(text) if text is not None else None for text in texts]
    short = [text[: match.start()] if match else text for text, match in zip(texts, matches, strict=True)]
    lost = np.array([len(text or "") for text in texts], np.int64) - [len(text or "") for text in short]
    counted, first = {}, 0
    for part in parts:
        rows = lost[first : first + part.rows]
        counted[str(part.source)] = (int(np.count_nonzero(rows)), int(rows.sum()))
        first += part.rows
    column = table.schema.get_field_index("text")
    return table.set_column(column, "text", pa.array(short, pa.large_string())), counted


@contextlib.contextmanager
def quiet_datasets() -> Iterator[None]:
    """No progress bar per slice; the bars of the user's own code come back afterwards."""
    import datasets

    # Made once here: opening a file makes this lock and deletes it again, while `map` uses it in another thread.
    datasets.utils.tqdm.get_lock()
    shown = datasets.utils.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
