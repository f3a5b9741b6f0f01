"""A table of rows to a table of tokens.

Rows are text, conversations or token ids. BOS and EOS are added, unless a document has them in its
ids, its pieces, or special tokens that are parsed. Text is encoded in batches of BATCH_BYTES.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from packprep.chat.build_tokenizer import ChatTokenizer
from packprep.chat.left_out import CountedText
from packprep.chat.turn_counts import TurnCounts
from packprep.config.grammar.known_columns import UNREAD
from packprep.config.stages import Parsing, Tokenizing
from packprep.engines.backends import Ids, Offsets
from packprep.engines.parity import EngineChoice, choose_engine, verify_batch
from packprep.engines.tokenizer import Tokenizer
from packprep.packing.kernels.gather import add_ends, make_room, missing_ends, with_ends
from packprep.schemas.columns import NO_LOSS, WHOLE_ROW
from packprep.sources.formats.arrow_columns import one_array
from packprep.sources.row_text import SECOND
from packprep.sources.units import part_bytes, ranges, text_bytes
from packprep.support.ahead import ahead
from packprep.support.arrays import Bools
from packprep.support.errors import InputError
from packprep.support.problems import Problem
from packprep.tokens.boundaries import Boundary, split_at_boundaries

# Text of one call of an engine. A batch reuses the memory of the one before; four times as much
# text took 1.6 times the page faults.
BATCH_BYTES = 1 << 20

READ = (
    *("text", "trained", "specials", "left_out", "turns", "parts", "ids", UNREAD),
    *SECOND.values(),
)
"""Columns of rows that become tokens and labels."""

_Result = TypeVar("_Result")


class Encoded(NamedTuple):
    """Rows as tokens.

    table: with the columns of a token file, a row for each document. verified: documents compared
    with the reference. problems: of rows that could not be encoded, by row; they have no tokens.
    left_out: text of other rows that their chat template does not write. turns: counts of each row
    whose turns may be documents, in the order of the fields of `TurnCounts`; None for a skipped
    row. removed: characters that truncate_at removed from each row.
    """

    table: pa.Table
    verified: int = 0
    problems: Mapping[int, Problem] = {}
    left_out: Sequence[CountedText] = ()
    turns: Sequence[Sequence[int] | None] = ()
    removed: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Encoder:
    """Turns rows into tokens with BOS and EOS.

    engine: None if rows are token ids. seed: draws the documents that are compared with the
    reference. num_proc: cores to use.
    """

    engine: EngineChoice | None
    tokenizer: Tokenizer
    parsing: Parsing
    tokenizing: Tokenizing
    seed: int = 0
    num_proc: int = 1

    def encode(
        self, table: pa.Table, numbers: NDArray[np.int64], stop: threading.Event | None = None
    ) -> Encoded:
        """Replace `text` by `tokens`, list<int32> with BOS and EOS; keep other columns.

        Null text has no tokens. Conversations also get `turn_ids` and, where their turns may be
        documents of their own, `turn_rows`; so do rows that are split at boundaries.

        numbers: of the rows, [documents]; they decide which ones are compared with the reference.
        stop: another thread sets it to end the work within a batch, by CancelledError.
        """
        removed: NDArray[np.int64] | None = None
        if self.parsing.truncate_at is not None:
            table, removed = cut_text(table, re.compile(self.parsing.truncate_at))
        if self.parsing.pair_columns:
            encoded = _joined(table, self._encode(_sides(table), np.repeat(numbers, 2), stop))
        elif self.tokenizer.boundary is not None:
            encoded = _encode_parts(table, self.tokenizer, self.tokenizer.boundary)
        elif self.parsing.turns != "row":
            encoded = self._encode_turns(table, numbers, stop)
        else:
            encoded = self._encode(table, numbers, stop)
        if self.parsing.chats and "turn_ids" not in encoded.table.column_names:
            whole_rows = pa.array(np.full(len(table), WHOLE_ROW, np.int32))
            encoded = encoded._replace(table=encoded.table.append_column("turn_ids", whole_rows))
        return encoded._replace(removed=removed)

    def _encode_turns(
        self, table: pa.Table, numbers: NDArray[np.int64], stop: threading.Event | None
    ) -> Encoded:
        """Documents of rows whose turns may be documents of their own.

        If one document of a row cannot be encoded, none is: the row is one document without tokens.
        """
        from packprep.chat.turn_documents import split_turns

        split = split_turns(table)
        encoded = self._encode(split.table, numbers[split.rows], stop)
        if encoded.problems:
            problems = {int(split.rows[at]): each for at, each in sorted(encoded.problems.items())}
            kept = np.ones(len(table), np.bool_)
            kept[list(problems)] = False
            for name in ("text", "turns"):
                place = table.schema.get_field_index(name)
                values = pc.if_else(
                    pa.array(kept), one_array(table[name]), pa.scalar(None, table[name].type)
                )
                table = table.set_column(place, name, values)
            rest = self._encode_turns(table, numbers, stop)
            return rest._replace(problems=problems | dict(rest.problems))
        return Encoded(
            _numbered(encoded.table, split.turns, split.rows),
            encoded.verified,
            left_out=[each._replace(row=int(split.rows[each.row])) for each in encoded.left_out],
            turns=[row and row["counts"] for row in table["turns"].to_pylist()],
        )

    def _encode(
        self, table: pa.Table, numbers: NDArray[np.int64], stop: threading.Event | None
    ) -> Encoded:
        """Rows that are one document each."""
        if (choice := self.engine) is None:
            return Encoded(_with_ends(table, self.tokenizer))
        if self.parsing.is_rendered:
            return self._encode_rendered(table, numbers, choice, stop)

        def encode(first: int, last: int) -> tuple[Ids, Offsets, int]:
            text = one_array(table["text"].slice(first, last - first))
            text = text.fill_null("") if text.null_count else text
            ids, offsets = choice.engine.encode(text)
            compared = self._verify(choice, ids, offsets, text, numbers[first:last])
            return ids, offsets, len(compared)

        verified, sizes = 0, text_bytes(table["text"])
        may_have = self.parsing.may_have_ends
        ended = _EndedIds(self.tokenizer, int(sizes.sum()), may_have=may_have)
        for size, (ids, offsets, compared) in self._in_batches(encode, sizes, choice, stop):
            verified += compared
            ended.add(ids, offsets, size)
        return Encoded(
            table.drop_columns(["text"]).append_column("tokens", _lists(*ended.joined())), verified
        )

    def _in_batches(
        self,
        encode: Callable[[int, int], _Result],
        sizes: NDArray[np.int64],
        choice: EngineChoice,
        stop: threading.Event | None,
    ) -> Iterator[tuple[int, _Result]]:
        """Results of encode(first, last) for batches of BATCH_BYTES, each with its bytes of text.

        sizes: bytes of text of each row.
        """

        def make(first: int, last: int, size: int) -> tuple[int, _Result]:
            if stop is not None and stop.is_set():
                raise CancelledError
            return size, encode(first, last)

        def submit(batch: tuple[int, int, int]) -> Future[tuple[int, _Result]]:
            return choice.threads.submit(self.num_proc, batch[2], make, *batch)

        batches = [
            (first, last, int(sizes[first:last].sum()))
            for first, last in ranges(sizes, BATCH_BYTES)
        ]
        return ahead(submit, batches, self.num_proc + 1)

    def _verify(
        self,
        choice: EngineChoice,
        ids: Ids,
        offsets: Offsets,
        text: pa.Array[Any],
        numbers: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Compare a share of a batch with the reference; return the places of these texts."""
        return verify_batch(
            choice.engine,
            ids,
            offsets,
            text,
            numbers,
            choice.reference,
            share=self.tokenizing.verify_engine,
            seed=self.seed,
        )

    def _encode_rendered(
        self,
        table: pa.Table,
        numbers: NDArray[np.int64],
        choice: EngineChoice,
        stop: threading.Event | None,
    ) -> Encoded:
        """Rendered conversations or pieces to `tokens` and, unless all is trained, `labels`.

        A label is 1 where its token is trained.
        """
        from packprep.chat.left_out import count_left_out
        from packprep.chat.masks import ChatTokens, encode_chats, exact_encoder
        from packprep.chat.pieces.parts import split_parts
        from packprep.chat.prompt_response import encode_prompted

        tokenizer, is_chat = self.tokenizer, self.parsing.chats
        left_out: list[CountedText] = []

        def count(first: int, batch: pa.Table, chats: ChatTokens) -> None:
            left_out.extend(
                each._replace(row=first + each.row)
                for each in count_left_out(batch, choice.engine)
                if each.row not in chats.problems
            )

        def encode(first: int, last: int) -> tuple[int, ChatTokens, int]:
            batch = table.slice(first, last - first).combine_chunks()
            if is_chat and not isinstance(tokenizer, ChatTokenizer):
                prompted = encode_prompted(batch, choice.engine, tokenizer.json)
                sides = np.repeat(
                    numbers[first:last], 2
                )  # both sides of a row are compared, or none
                compared = self._verify(
                    choice, prompted.ids, prompted.offsets, prompted.pieces, sides
                )
                count(first, batch, prompted.tokens)
                return first, prompted.tokens, len(compared) // 2
            split = split_parts(batch)
            parts = encode_chats(split.texts, choice.engine, exact_encoder(tokenizer.json))
            chats = split.joined(parts, len(batch))
            count(first, batch, chats)
            # The ids of a row that spells special tokens differ from those of an engine: only
            # special tokens of the template are parsed.
            is_plain = split.texts["specials"].is_null().to_numpy()
            plain, lengths = np.flatnonzero(is_plain), np.diff(parts.offsets)
            ids = parts.ids if is_plain.all() else parts.ids[np.repeat(is_plain, lengths)]
            text = one_array(split.texts["text"]).fill_null("").take(pa.array(plain, pa.int64()))
            offsets, rows = np.append(0, np.cumsum(lengths[plain])), split.rows[plain]
            compared = self._verify(choice, ids, offsets, text, numbers[first:last][rows])
            return first, chats, len(np.unique(rows[compared]))

        tokens, masks, verified = [], [], 0
        problems: dict[int, Problem] = {}
        sizes = text_bytes(table["text"]) + part_bytes(table["parts"])
        for _, (first, chats, compared) in self._in_batches(encode, sizes, choice, stop):
            problems |= {first + row: problem for row, problem in chats.problems.items()}
            _check_ids(chats.ids, tokenizer)
            ids, trained, offsets = _rendered_with_ends(
                chats.ids,
                chats.trained,
                chats.offsets,
                tokenizer,
                trains_eos=is_chat,
                may_have=self.parsing.may_have_ends,
            )
            tokens.append(_lists(ids, offsets))
            masks.append(_lists(trained, offsets))
            verified += compared
        rest = table.drop_columns([name for name in READ if name in table.column_names])
        rest = rest.append_column("tokens", _chunked(tokens, _list_of_ids(tokenizer)))
        if self.tokenizing.train_on != "all":
            rest = rest.append_column("labels", _chunked(masks, pa.list_(pa.int8())))
        return Encoded(rest, verified, problems, sorted(left_out))


def load_encoder(
    tokenizer: Tokenizer, parsing: Parsing, tokenizing: Tokenizing, seed: int, num_proc: int
) -> Encoder:
    """The encoder of a sample of the rows of a build, with an engine chosen without documents."""
    engine, parsed = None, parsing.parses_special_tokens
    if parsing.input_ids_column is None:
        engine = choose_engine(tokenizing.engine, tokenizer.json, parse_special_tokens=parsed)
    return Encoder(engine, tokenizer, parsing, tokenizing, seed, num_proc)


def _numbered(table: pa.Table, turns: NDArray[np.int32], rows: NDArray[np.int64]) -> pa.Table:
    """The documents of rows, each with its turn and its row."""
    return table.append_column("turn_ids", pa.array(turns)).append_column(
        "turn_rows", pa.array(rows.astype(np.int32))
    )


def _encode_parts(table: pa.Table, tokenizer: Tokenizer, boundary: Boundary) -> Encoded:
    """Documents of rows of token ids that another tool packed."""
    parts, rows, numbers = split_at_boundaries(table, boundary)
    counts = np.bincount(rows, minlength=len(table)).tolist()
    return Encoded(
        _numbered(_with_ends(parts, tokenizer), numbers, rows),
        turns=[TurnCounts(documents=count, split_rows=int(count > 1)).values() for count in counts],
    )


class _EndedIds:
    """Ids of all batches in one array, each document with its BOS and EOS.

    This is the only copy before they are written. Each batch is added at once, so that the engine
    can reuse its memory for the next batch.
    """

    def __init__(self, tokenizer: Tokenizer, size: int, *, may_have: bool) -> None:
        """size: of all batches together, in the unit of `add`. may_have: see `missing_ends`."""
        self._ends = _end_ids(tokenizer)
        self._may_have = may_have
        self._tokenizer = tokenizer
        self._left = size
        self._ids = np.empty(0, tokenizer.id_type)
        self._offsets = [np.zeros(1, np.int64)]

    def add(self, ids: Ids, offsets: Offsets, size: int) -> tuple[Bools, Bools]:
        """Return the documents that got BOS, and those that got EOS, [documents] each.

        ids: [tokens]. offsets: [documents + 1].
        """
        bos, eos = self._ends
        _check_ids(ids, self._tokenizer)
        before, after = missing_ends(ids, offsets, bos, eos, may_have=self._may_have)
        wider = with_ends(offsets, before, after)
        first, new = int(self._offsets[-1][-1]), int(wider[-1])
        self._left -= size
        if first + new > len(self._ids):
            # Room for the rest if it is like this batch, and a little more: unused room costs
            # nothing.
            grown = np.empty(
                first + new + int(1.1 * new * self._left / max(size, 1)), self._ids.dtype
            )
            grown[:first] = self._ids[:first]
            self._ids = grown
        add_ends(ids, offsets, wider, before, bos, eos, self._ids[first : first + new])
        self._offsets.append(wider[1:] + first)
        return before, after

    def joined(self) -> tuple[NDArray[Any], Offsets]:
        """Ids [tokens] and offsets of documents in them [documents + 1]."""
        offsets = np.concatenate(self._offsets)
        return self._ids[: offsets[-1]], offsets


def _sides(table: pa.Table) -> pa.Table:
    """Both sides of pairs as rows, [2 x documents]: first, second, first, second, ..."""
    names = [name for name, second in SECOND.items() if second in table.column_names]
    seconds = [SECOND[name] for name in names]
    both = pa.concat_tables([table.select(names), table.select(seconds).rename_columns(names)])
    places = np.arange(2 * len(table)).reshape(2, -1).T.ravel()
    return both.take(pa.array(places, pa.int64()))


def _joined(table: pa.Table, sides: Encoded) -> Encoded:
    """Rows of pairs: the ids of both sides one after the other, and the length of the first."""
    replaced = {*READ, *sides.table.column_names}
    rest = table.drop_columns([name for name in table.column_names if name in replaced])
    for name in sides.table.column_names:
        values, offsets = _flat(one_array(sides.table[name]))
        rest = rest.append_column(name, _lists(values, offsets[::2]))
        if name == "tokens":
            rest = rest.append_column(
                "pair_split", pa.array((offsets[1::2] - offsets[:-1:2]).astype(np.int32))
            )
    return Encoded(
        rest,
        sides.verified,
        {row // 2: problem for row, problem in sides.problems.items()},
        [each._replace(row=each.row // 2) for each in sides.left_out],
    )


def _rendered_with_ends(
    ids: Ids,
    trained: NDArray[np.bool_],
    offsets: Offsets,
    tokenizer: Tokenizer,
    *,
    trains_eos: bool,
    may_have: bool,
) -> tuple[NDArray[Any], NDArray[np.int8], Offsets]:
    """Add BOS, untrained, and EOS where the tokenizer has them.

    It has none where a chat template writes them. trains_eos: EOS is trained always, else if the
    token before it is. may_have: see `missing_ends`.
    """
    bos, eos = _end_ids(tokenizer)
    before, after = missing_ends(ids, offsets, bos, eos, may_have=may_have)
    wider = with_ends(offsets, before, after)
    tokens, mask = np.empty(wider[-1], tokenizer.id_type), np.zeros(wider[-1], np.int8)
    add_ends(ids, offsets, wider, before, bos, eos, tokens)
    make_room(trained.astype(np.int8), offsets, wider, before, mask)
    last = wider[1:][after] - 1
    mask[last] = 1 if trains_eos else mask[last - 1]
    return tokens, mask, wider


def _with_ends(table: pa.Table, tokenizer: Tokenizer) -> pa.Table:
    """Replace `ids` by `tokens`, with BOS and EOS where they are missing; other lists stay aligned.

    An added BOS has no loss. An added EOS has one if the token before it has. Carried columns are 0
    at both.
    """
    bos, eos = _end_ids(tokenizer)
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    lists = {name: column for name, column in columns.items() if pa.types.is_list(column.type)}
    if bos >= 0 or eos >= 0:
        flat = {name: _flat(column) for name, column in lists.items()}
        ids, offsets = flat["ids"]
        ended = _EndedIds(tokenizer, 0, may_have=True)
        before, after = ended.add(ids, offsets, 0)
        tokens, wider = ended.joined()
        lists["ids"] = _lists(tokens, wider)
        for name, (values, _) in flat.items():
            if name == "ids":
                continue
            fill = NO_LOSS if name == "labels" and values.dtype == np.int32 else 0
            out = np.full(len(tokens), fill, values.dtype)
            make_room(values, offsets, wider, before, out)
            if name == "labels":
                last = wider[1:][after] - 1
                out[last] = np.where(out[last - 1] != fill, 1 if fill == 0 else eos, fill)
            lists[name] = _lists(out, wider)
    columns |= lists
    return pa.table({"tokens": columns.pop("ids").cast(_list_of_ids(tokenizer))} | columns)


def _check_ids(ids: Ids, tokenizer: Tokenizer) -> None:
    """Raise InputError for an id that does not fit the id type of token files."""
    if tokenizer.id_type == np.uint16 and len(ids) and int(ids.max()) >= 1 << 16:
        raise InputError(
            f"the engine returned the id {ids.max():,}, but the vocabulary has "
            f"{tokenizer.vocab_size:,}; use --engine hf"
        )


def _list_of_ids(tokenizer: Tokenizer) -> pa.DataType:
    return pa.list_(pa.from_numpy_dtype(tokenizer.id_type))


def _end_ids(tokenizer: Tokenizer) -> tuple[int, int]:
    """Ids of BOS and EOS, -1 for none."""
    bos, eos = (token.id if token else -1 for token in (tokenizer.bos, tokenizer.eos))
    return bos, eos


def _chunked(lists: list[pa.ListArray[Any]], kind: pa.DataType) -> pa.ChunkedArray[Any]:
    """The lists as one column; the type is needed where there are none."""
    # The stubs have no list types here.
    chunks: pa.ChunkedArray[Any] = pa.chunked_array(lists, kind)  # type: ignore[call-overload]
    return chunks


def _flat(array: pa.Array[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Values and offsets of a list array, int64 from 0."""
    lists = cast("pa.ListArray[Any]", array)
    offsets = lists.offsets.to_numpy().astype(np.int64)
    values: NDArray[Any] = lists.values.to_numpy()[offsets[0] : offsets[-1]]
    return values, offsets - offsets[0]


def _lists(values: NDArray[Any], offsets: NDArray[np.int64]) -> pa.ListArray[Any]:
    if len(values) >= 2**31:
        raise InputError(
            f"the documents of a slice have {len(values):,} tokens, more than an Arrow list holds"
        )
    lists: pa.ListArray[Any] = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32), pa.int32()), pa.array(values)
    )
    return lists


def cut_text(table: pa.Table, pattern: re.Pattern[str]) -> tuple[pa.Table, NDArray[np.int64]]:
    """Text up to the first match, and characters removed from each row, int64 [rows]."""
    texts: list[str | None] = table["text"].to_pylist()
    matches = [pattern.search(text) if text is not None else None for text in texts]
    short = [
        text[: match.start()] if text and match else text
        for text, match in zip(texts, matches, strict=True)
    ]
    removed = [len(text or "") - len(kept or "") for text, kept in zip(texts, short, strict=True)]
    column = table.schema.get_field_index("text")
    table = table.set_column(column, "text", pa.array(short, pa.large_string()))
    return table, np.array(removed, np.int64)
