"""Rows of a source, from every format, as Arrow tables with the same columns.

text     string, the document; null where the row has no usable one
second   string, with `pair_columns`: the other side of the row, null where text is null
ids      list<int32>, in place of text with `input_ids_column`; of pairs also `second_ids`
problem  the fault of the row, null where there is none: see problems.py
group    string, only with `group_column`: text, or a number or boolean as JSON writes it
prefix_group  int64, only with `group_prefix`: a hash of that column, written in the same way
labels   list<int32>, or list<int8> where it is a mask; of pairs also `second_labels`; and the
         columns of `carry`: see carried.py
UNREAD   list<string>, of conversations: "column NAME" and "key NAME" for each column of the row and
         each key of a message that nothing reads

The schema has metadata UNREAD: names of other columns of the source, of JSON rows those of the
first one.

Conversations and pieces are rendered to text; `trained`, `specials` and `parts` mark trained text,
special tokens, and what is encoded by itself in it: see masks.py.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from packprep.chat.build_tokenizer import ChatTokenizer
from packprep.config.grammar.known_columns import UNREAD
from packprep.config.grammar.label_columns import LossKind
from packprep.config.stages import Parsing, Tokenizing
from packprep.engines.tokenizer import Tokenizer
from packprep.schemas.errors import FormatError
from packprep.sources.carried import carried_types, text_type
from packprep.sources.formats.format import ROWS_PER_TABLE, LocalPath, Wanted
from packprep.sources.formats.row_plan import Chat, RowPlan, TokenIds, row_plan
from packprep.sources.label_kinds import kind_in
from packprep.sources.opening import readable, unpacked
from packprep.sources.row_text import as_rows
from packprep.sources.source import Source
from packprep.support.errors import InputError
from packprep.support.problems import READER_PROBLEM, reader_problems

if TYPE_CHECKING:
    from packprep.chat.turns import Finder


class RowPlace(NamedTuple):
    """A row of a source, and the byte where it begins, see `Format.row_begins`."""

    row: int
    byte: int


BEGIN = RowPlace(0, 0)
_LARGE = 1 << 16  # bytes: headers of files without rows are smaller


def read_rows(
    source: Source, plan: RowPlan, scratch: Path, begin: RowPlace = BEGIN, first: int = 0
) -> Iterator[pa.Table]:
    """Tables of the columns above, in row order from `first` on, or from `begin` if it is later.

    Rows before `first` are read but not rendered, which is what conversations cost. Raises
    InputError naming the source.
    """
    read = [begin.row]  # rows so far, for errors
    with readable(source, read), unpacked(source, scratch) as path:
        plan = _opened(source, path, plan, scratch)
        facts = None
        for table in _tables(source, path, Wanted(plan, scratch, begin.byte)):
            if not read[0]:
                _check_columns(source, path, table, plan)
                facts = {UNREAD: json.dumps(_unread(source, path, table, plan))}
            skipped = min(max(first - read[0], 0), len(table))
            read[0] += len(table)
            if skipped < len(table):
                rows = as_rows(table.slice(skipped), plan, is_utf8=source.format.finds_bad_utf8)
                yield rows.replace_schema_metadata(facts)
        if not read[0]:
            raise InputError(f"{source.name} holds no rows; expected at least one document")


def holds_rows(source: Source, parsing: Parsing, scratch: Path) -> bool:
    """False for a small file that is sound and holds no row. parsing: of the build.

    A large file has rows, or reading it says that it has none.
    """
    if source.bytes > _LARGE:
        return True
    format_, plan = source.format, row_plan(parsing.of_source(source.reading))
    try:
        with readable(source), unpacked(source, scratch) as path:
            if format_.count is not None and (rows := format_.count(source)) is not None:
                return rows > 0
            if format_.is_streamed:
                with source.plain() as file:
                    begin = file.read(_LARGE)
                if not begin:
                    return False
                if format_.has_row_a_line is not None and format_.has_row_a_line(begin):
                    return True  # ten times as fast as its reader
            return any(map(len, format_.tables(source, path, Wanted(plan, scratch))))
    except (InputError, FormatError):  # reading it says what is wrong
        return True


def label_kind(source: Source, parsing: Parsing, scratch: Path) -> LossKind | None:
    """The kind of the column of labels or of a mask, by the first rows, see label_kinds.py.

    None for rows without such a column, and with both. parsing: of the build.
    """
    own = parsing.of_source(source.reading)
    plan = row_plan(own)
    if not isinstance(rows := plan.rows, TokenIds) or rows.is_decided:
        return own.label_columns.kind
    if source.format.beside is not None:
        return "mask"  # files of token ids have no labels
    with readable(source), unpacked(source, scratch) as path:
        plan = _opened(source, path, plan, scratch)
        tables = _tables(source, path, Wanted(plan, scratch))
        for number, table in enumerate(tables):
            if not number:
                _check_columns(source, path, table, plan)
            for first in range(0, len(table), ROWS_PER_TABLE):
                some = table.slice(first, ROWS_PER_TABLE)
                if (kind := kind_in(some, rows, source.name)) is not None:
                    return kind
    return "labels"


def plan_rows(
    sources: Sequence[Source],
    parsing: Parsing,
    tokenizing: Tokenizing,
    tokenizer: Tokenizer,
    scratch: Path,
) -> tuple[list[RowPlan], str | None]:
    """The plan of each source, and a sentence for the user about conversations.

    The first rows of the first source decide the types of carried columns, the template decides how
    conversations are rendered.
    """
    finder = make_finder(tokenizer, parsing, tokenizing)
    make = cache(lambda own: row_plan(own, tokenizer.vocab_size, finder))
    plans = [make(parsing.of_source(source.reading)) for source in sources]
    source, first, note = sources[0], plans[0], None
    types: Mapping[str, pa.DataType] = {}
    if not first.carry and not isinstance(first.rows, Chat):
        return plans, None
    with readable(source), unpacked(source, scratch) as path:
        first = _opened(source, path, first, scratch)
        if isinstance(first.rows, Chat):
            names = " and ".join(map(repr, first.rows.names))
            note = f"{source.name}: conversations are read from {names}"
            if beside := _read_beside(source, path, first.rows):
                note += f", with {' and '.join(map(repr, beside))}"
        if first.types:
            types = first.types
        elif first.carry:
            table = next(_tables(source, path, Wanted(first, scratch)))
            _check_columns(source, path, table, first)
            types = {
                name: text_type(table[name]) if source.format.numbers_are_text else table[name].type
                for name in first.numbers
            }
    carried = carried_types(types, first, source.name)
    return [replace(plan, carried=carried) for plan in (first, *plans[1:])], note


def make_finder(tokenizer: Tokenizer, parsing: Parsing, tokenizing: Tokenizing) -> "Finder | None":
    """The renderer of conversations; None for a build without them."""
    if not parsing.chats:
        return None
    from packprep.chat.masks import exact_encoder
    from packprep.chat.pieces.finder import PieceFinder
    from packprep.chat.prompt_response import PlainFinder
    from packprep.chat.rendering.renderer import Renderer
    from packprep.chat.turn_documents import TurnSplitter
    from packprep.chat.turns import TurnFinder

    specials = exact_encoder(tokenizer.json).specials
    if not isinstance(tokenizer, ChatTokenizer):
        return PlainFinder(specials)
    if isinstance(tokenizer.template, Renderer):
        size = tokenizer.vocab_size
        return PieceFinder(tokenizer.template, specials, size, joined=parsing.join_pieces)
    finder = TurnFinder(tokenizer.template, specials, tokenizing.train_on, tokenizing.train_fields)
    if (turns := parsing.split_turns).name == "row":
        return finder
    return TurnSplitter(finder, turns.name, turns.most)


def _opened(source: Source, path: LocalPath, plan: RowPlan, scratch: Path) -> RowPlan:
    """The plan with all that only the open source tells: columns of conversations, types."""
    format_ = source.format
    is_chat = isinstance(plan.rows, Chat) and not plan.rows.is_found
    if is_chat or (isinstance(plan.rows, TokenIds) and format_.beside is None):
        names: Sequence[str] | None = ()
        if is_chat or not format_.has_own_columns:
            names = format_.columns(source, path)
        if names is None:
            names = next(_tables(source, path, Wanted(plan, scratch))).column_names
        plan = plan.found_in(names, source.name, any_row=format_.has_own_columns)
    if plan.types or not plan.numbers or format_.first_types is None:
        return plan
    types = format_.first_types(source, plan.numbers)
    if isinstance(plan.rows, TokenIds):
        lists = [name for name in plan.rows.optional if not pa.types.is_list(types[name])]
        unknown = (each for each in lists if pa.types.is_null(types[each]))
        attention = (each for each in lists if each not in plan.rows.refused)
        types |= dict.fromkeys((*unknown, *attention), pa.list_(pa.int64()))
    if empty := [name for name in plan.numbers if pa.types.is_null(types[name])]:
        names = empty
        with contextlib.suppress(InputError):  # for rows that cannot be parsed; reading says it
            names = format_.columns(source, source.path) or empty
        _check_names(source, names, empty, ())
    return replace(plan, types=types)


def _tables(source: Source, path: LocalPath, wanted: Wanted) -> Iterator[pa.Table]:
    """The rows of an open source as tables.

    A format that is read front to back decides how large its tables are: with 512 rows in each,
    short documents took five times as long to check and to cut. Conversations and pieces are an
    exception, because the first table is rendered before anything else begins.
    """
    for table in source.format.tables(source, path, wanted):
        rows = ROWS_PER_TABLE if wanted.plan.nested else len(table)
        yield from (table.slice(first, rows) for first in range(0, len(table), rows or 1))


def _check_columns(source: Source, path: LocalPath, table: pa.Table, plan: RowPlan) -> None:
    """Raise InputError if a wanted column is missing.

    Where each row names its columns, only columns without any value are looked up in the first row.
    """
    rows = plan.rows
    beside: Sequence[str | None] = ()
    if isinstance(rows, Chat):
        beside = rows.tools, rows.variables, *rows.beside
    elif isinstance(rows, TokenIds):
        beside = rows.optional
    wanted = [name for name in plan.columns if name not in beside]
    if source.format.has_own_columns and (
        all(table[name].null_count < len(table) for name in wanted)
        or reader_problems(table)[0].is_valid
    ):
        return
    names = source.format.columns(source, path)
    _check_names(source, table.column_names if names is None else names, wanted, plan.texts)


def _unread(source: Source, path: LocalPath, table: pa.Table, plan: RowPlan) -> list[str]:
    """Names of the columns that are not read, of JSON rows those of the first one.

    table: of the first rows. None are known if each row names its columns and none could be read:
    a row may have no end.
    """
    if source.format.has_own_columns and reader_problems(table).null_count == 0:
        return []
    names: Sequence[str] | None = None
    if source.format.beside is None:
        with contextlib.suppress(InputError):  # for rows that cannot be parsed; reading says it
            names = source.format.columns(source, path)
    names = table.column_names if names is None else names
    return [name for name in names if name not in (*plan.columns, READER_PROBLEM)]


def _read_beside(source: Source, path: LocalPath, rows: Chat) -> list[str]:
    """Columns that become messages, of those that a source has."""
    own = (
        ("system", "input", "history")
        if rows.of_side(rows.sides[0]).is_instruction
        else ("system",)
    )
    names = source.format.columns(source, path)
    return [name for name in own if name in rows.beside and name in (names or rows.beside)]


def _check_names(
    source: Source, names_found: Sequence[str], wanted: Sequence[str], texts: Sequence[str]
) -> None:
    """Raise InputError unless each wanted column exists once.

    names_found: of all columns. texts: columns that an option for text chooses.
    """
    for name in wanted:
        if names_found.count(name) != 1:
            options = (
                "--text-column or --text-template" if name in texts else "the option that names it"
            )
            if name in texts and {"messages", "conversations"} & set(names_found):
                options += ", or --messages-column auto for conversations"
            problem = "has no column" if name not in names_found else "has more than one column"
            listed = ", ".join(names_found) or "none"
            raise InputError(
                f"{source.name} {problem} {name!r}; it has {listed}: choose with {options}"
            )
