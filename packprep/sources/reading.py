"""Rows of a source, from every format, as Arrow tables with the same columns.

text     string, the document; null where the row has no usable one
second   string, with `pair_columns`: the other side of the row, null where text is null
ids      list<int32>, in place of text with `input_ids_column`; of pairs also `second_ids`
problem  the fault of the row, null where there is none: see problems.py
group    string, only with `group_column`: text, or a number or boolean as JSON writes it
prefix_group  int64, only with `group_prefix`: a hash of that column, written in the same way
labels   list<int32>, or list<int8> where it is a mask; of pairs also `second_labels`; and the
         columns of `carry`: see carried.py

Conversations are rendered to text; `trained` and `specials` mark trained parts and special tokens
in it: see masks.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from packprep.chat.build_tokenizer import ChatTokenizer
from packprep.config.build_config import BuildConfig
from packprep.engines.tokenizer import Tokenizer
from packprep.sources.carried import RowShape, carried_types, number_columns, text_type
from packprep.sources.opening import check_names, number_types, open_rows, readable, unpacked
from packprep.sources.row_text import as_rows, columns_read, text_columns
from packprep.sources.source import Source
from packprep.support.errors import InputError
from packprep.support.problems import reader_problems

if TYPE_CHECKING:
    from packprep.chat.conversations import ConversationColumns
    from packprep.chat.turns import Finder

TEXT_ROWS = RowShape()
BESIDE: dict[str, Any] = {
    "tools": "tools",
    "variables": "chat_template_kwargs",
}  # other columns that a conversation uses


class RowPlace(NamedTuple):
    """A row of a source, and the byte where it begins, see `Format.row_begins`."""

    row: int
    byte: int


BEGIN = RowPlace(0, 0)


def read_rows(
    source: Source,
    config: BuildConfig,
    scratch: Path,
    shape: RowShape = TEXT_ROWS,
    begin: RowPlace = BEGIN,
    first: int = 0,
) -> Iterator[pa.Table]:
    """Tables of the columns above, in row order from `first` on, or from `begin` if it is later.

    Rows before `first` are read but not rendered, which is what conversations cost. Raises
    InputError naming the source.
    """
    config = config.of_source(source.reading)
    read = [begin.row]  # rows so far, for errors
    with readable(source, read), unpacked(source, scratch) as path:
        chats = _conversations(source, path, config, scratch) if config.chats else None
        for table in open_rows(source, path, config, scratch, chats, begin.byte):
            if not read[0]:
                _check_columns(source, path, table, config, chats)
            skipped = min(max(first - read[0], 0), len(table))
            read[0] += len(table)
            if skipped == len(table) > 0:
                continue
            table = table.slice(skipped)
            yield as_rows(table, config, shape, chats, is_utf8=source.format.finds_bad_utf8)
        if not read[0]:
            raise InputError(f"{source.name} holds no rows; expected at least one document")


def row_shape(
    sources: Sequence[Source], config: BuildConfig, scratch: Path, tokenizer: Tokenizer
) -> RowShape:
    """Columns that rows become.

    The first rows of the first source decide the types of carried columns, the template decides how
    conversations are rendered.
    """
    source = sources[0]
    config = config.of_source(source.reading)
    names = number_columns(config)
    chats = types = None
    if config.carry or config.chats:
        with readable(source), unpacked(source, scratch) as path:
            chats = _conversations(source, path, config, scratch) if config.chats else None
            if source.format.first_types is not None:
                types = number_types(source, names)
            elif config.carry:
                table = next(open_rows(source, path, config, scratch, chats))
                _check_columns(source, path, table, config, chats)
                types = {
                    name: text_type(table[name])
                    if source.format.numbers_are_text
                    else table[name].type
                    for name in names
                }
    return RowShape(
        carried=carried_types(types or {}, config, source.name),
        vocab_size=tokenizer.vocab_size,
        finder=make_finder(tokenizer, config),
        notes=(f"{source.name}: {replace(chats, tools=None).note}",) if chats is not None else (),
    )


def make_finder(tokenizer: Tokenizer, config: BuildConfig) -> "Finder | None":
    """The renderer of conversations; None for a build without them."""
    if not config.chats:
        return None
    from packprep.chat.masks import exact_encoder
    from packprep.chat.prompt_response import PlainFinder
    from packprep.chat.turn_documents import TurnSplitter
    from packprep.chat.turns import TurnFinder

    specials = exact_encoder(tokenizer.json).specials
    if not isinstance(tokenizer, ChatTokenizer):
        return PlainFinder(specials)
    finder = TurnFinder(tokenizer.template, specials, config.train_on, config.train_fields)
    return finder if config.turns == "row" else TurnSplitter(finder, config.turns, config.max_turns)


def _conversations(
    source: Source, path: Path | str | None, config: BuildConfig, scratch: Path
) -> "ConversationColumns":
    """Columns of a source that hold its conversations; InputError if it has none."""
    names = source.format.columns(source, path)
    if names is None:
        names = next(open_rows(source, path, config, scratch, None)).column_names
    return find_columns(names, config, source.name, any_row=source.format.has_own_columns)


def find_columns(
    names: Sequence[str], config: BuildConfig, where: str, *, any_row: bool = False
) -> "ConversationColumns":
    """Choose the columns that hold conversations.

    any_row: a later row may have columns of tools or variables that are not in `names`.
    """
    from packprep.chat.conversations import ConversationColumns, find_conversations

    if config.pair_columns:
        prompt = () if config.prompt_column is None else (config.prompt_column,)
        for name in (*prompt, *config.pair_columns):
            if name not in names:
                raise InputError(
                    f"{where}: there is no column {name!r}; there are {', '.join(names)}"
                )
        beside = {key: name for key, name in BESIDE.items() if any_row or name in names}
        return ConversationColumns(
            kind="pair" if prompt else "messages", names=(*prompt, *config.pair_columns), **beside
        )
    try:
        columns = find_conversations(
            names,
            messages_column=None if config.messages_column == "auto" else config.messages_column,
            prompt_column=config.prompt_column,
            response_column=config.response_column,
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if columns is None:
        raise InputError(
            f"{where} has no columns that are known to hold conversations; it has "
            f"{', '.join(names) or 'no columns'}: choose with "
            "--messages-column, or --prompt-column and --response-column"
        )
    return replace(columns, **BESIDE) if any_row else columns


def _check_columns(
    source: Source,
    path: Path | str | None,
    table: pa.Table,
    config: BuildConfig,
    chats: "ConversationColumns | None",
) -> None:
    """Raise InputError if a wanted column is missing.

    Where each row names its columns, only columns without any value are looked up in the first row.
    """
    texts = text_columns(config)
    beside = (chats.tools, chats.variables) if chats is not None else ()
    wanted = [name for name in columns_read(config, chats) if name not in beside]
    if source.format.has_own_columns and (
        all(table[name].null_count < len(table) for name in wanted)
        or reader_problems(table)[0].is_valid
    ):
        return
    names = source.format.columns(source, path)
    check_names(source, table.column_names if names is None else names, wanted, texts)
