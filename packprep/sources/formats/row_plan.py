"""Kinds of rows, and the plan by which the rows of one source are read.

A row is text, a conversation, pieces or token ids, and has one side, or two as a pair. What a kind
does not have cannot be asked of it: conversations have no template of text, token ids no column of
text.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from packprep.chat.conversations import (
    TOOLS,
    VARIABLES,
    ConversationColumns,
    find_conversations,
)
from packprep.config.grammar.known_columns import Where, beside_ids, known
from packprep.config.grammar.label_columns import LossKind
from packprep.config.stages import Parsing
from packprep.schemas.columns import Column
from packprep.support.errors import ConfigError, InputError

if TYPE_CHECKING:
    from packprep.chat.turns import Finder


@dataclass(frozen=True)
class Text:
    """Rows of text.

    sides: the parts of the text of each side, a literal text and the column after it; None if no
    column follows.
    """

    sides: tuple[tuple[tuple[str, str | None], ...], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that make the text, in the order of the template."""
        names = (name for side in self.sides for _, name in side if name is not None)
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class Chat:
    """Rows of conversations.

    sides: columns of each side, one of messages, or prompt and response; may be empty until they
    are found in the source (is_found). finder: renders them. tools, variables: columns of these, if
    there are any. beside: see `ConversationColumns`.
    """

    sides: tuple[tuple[str, ...], ...]
    finder: Finder | None = None
    tools: str | None = None
    variables: str | None = None
    beside: tuple[str, ...] = ()
    is_found: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of messages, prompts and responses."""
        return tuple(dict.fromkeys(name for side in self.sides for name in side))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of conversations."""
        return self.of_side(self.names).wanted

    def of_side(self, names: tuple[str, ...]) -> ConversationColumns:
        """The columns of one of the sides."""
        return ConversationColumns(names, self.tools, self.variables, self.beside)

    def found_in(
        self, names: Sequence[str], where: str, taken: Sequence[str], *, any_row: bool
    ) -> Chat:
        """The rows, with the columns that a source of these columns has.

        any_row: a later row may have columns beside conversations that are not in `names`. taken:
        columns that other options name. Raises InputError if columns are missing. where: the
        source, for messages.
        """
        for name in self.names:
            if name not in names:
                raise InputError(
                    f"{where}: there is no column {name!r}; there are {', '.join(names)}"
                )
        sides = self.sides
        if not sides:
            if (found := find_conversations(names)) is None:
                raise InputError(
                    f"{where} has no columns that are known to hold conversations; it has "
                    f"{', '.join(names) or 'no columns'}: choose with "
                    "--messages-column, --prompt-column and --response-column, or --pair-columns"
                )
            sides = (found.names,)
        tools, variables = (
            name if any_row or name in names else None for name in (TOOLS, VARIABLES)
        )
        used = {TOOLS, VARIABLES, *taken, *(name for side in sides for name in side)}
        completions: tuple[Where, ...] = ("completion",) if list(map(len, sides)) == [2] else ()
        beside = tuple(
            name
            for name in known(("conversations", *completions))
            if name not in used and (any_row or name in names)
        )
        named = replace(self, sides=sides, tools=tools, variables=variables)
        return replace(named, beside=beside, is_found=True)


@dataclass(frozen=True)
class Pieced:
    """Rows of pieces of text and of token ids, which are below vocab_size.

    sides: the column of each side. joined: pieces of text are encoded as one, see
    chat/pieces/pieces.py.
    """

    sides: tuple[str, ...]
    vocab_size: int
    joined: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of pieces."""
        return self.sides


@dataclass(frozen=True)
class IdColumns:
    """Columns of token ids of one side.

    either: labels or a mask, as its values say. prompt: its ids are before those of the side,
    without a loss. attention, prompt_attention: 0 where these ids are padding.
    """

    ids: str
    labels: str | None = None
    mask: str | None = None
    either: str | None = None
    prompt: str | None = None
    attention: str | None = None
    prompt_attention: str | None = None


@dataclass(frozen=True)
class TokenIds:
    """Rows of token ids, which are below vocab_size.

    refused: columns that must have no value, see `known_columns`.
    """

    sides: tuple[IdColumns, ...]
    vocab_size: int
    refused: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of lists of numbers."""
        names = (name for side in self.sides for name in vars(side).values())
        return tuple(dict.fromkeys(name for name in (*names, *self.refused) if name is not None))

    @property
    def optional(self) -> tuple[str, ...]:
        """Those of `columns` that rows need not have."""
        attention = (
            each for side in self.sides for each in (side.attention, side.prompt_attention)
        )
        return (*(name for name in attention if name is not None), *self.refused)

    def found_in(self, names: Sequence[str], taken: Sequence[str], *, any_row: bool) -> TokenIds:
        """The rows, with the columns beside ids that a source of these columns has."""
        used = {*taken, *self.columns} - {*self.optional}

        def beside(ids: str | None, name: str) -> str | None:
            if ids is None or (len(self.sides) > 1 and "input_ids" not in ids):
                return None
            column = beside_ids(ids, name)
            return column if column not in used and (any_row or column in names) else None

        sides = tuple(
            replace(
                side,
                attention=beside(side.ids, "attention_mask"),
                prompt_attention=beside(side.prompt, "attention_mask"),
            )
            for side in self.sides
        )
        columns = (
            beside(side.ids, name)
            for side in sides
            if (side.labels, side.mask, side.either) == (None, None, None)
            for name in known(("ids",), "refused")
        )
        refused = tuple(dict.fromkeys(name for name in columns if name is not None))
        return replace(self, sides=sides, refused=refused)

    @property
    def is_decided(self) -> bool:
        """True if it is known which columns are labels and which are masks."""
        return all(side.either is None for side in self.sides)

    def of_kind(self, kind: LossKind) -> TokenIds:
        """The rows, with the kind of the columns `either`."""
        sides = (
            replace(side, either=None, labels=side.either)
            if kind == "labels"
            else replace(side, either=None, mask=side.either)
            for side in self.sides
        )
        return self if self.is_decided else replace(self, sides=tuple(sides))


@dataclass(frozen=True, kw_only=True)
class RowPlan:
    """Columns that are read from the rows of a source, their types, and what a row becomes.

    carry: entries NAME or NAME:TYPE. carried: their columns, once the types are known.
    group_column, group_prefix: columns that say which rows are of one group.
    types: of the columns of numbers, in a format that must know them before it reads.
    """

    rows: Text | Chat | Pieced | TokenIds
    carry: Sequence[str] = ()
    carried: Sequence[Column] = ()
    group_column: str | None = None
    group_prefix: str | None = None
    sample_by: Literal["document", "paragraph", "line"] = "document"
    on_error: Literal["stop", "skip"] = "stop"
    max_row_size: int = 1 << 30
    types: Mapping[str, pa.DataType] = field(default_factory=dict)

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns of text."""
        return self.rows.columns if isinstance(self.rows, Text) else ()

    @property
    def nested(self) -> tuple[str, ...]:
        """Columns with values of any type."""
        return self.rows.columns if isinstance(self.rows, (Chat, Pieced)) else ()

    @property
    def groups(self) -> list[str]:
        """Columns whose values say which rows are of one group."""
        names = (self.group_column, self.group_prefix)
        return list(dict.fromkeys(name for name in names if name is not None))

    @property
    def numbers(self) -> list[str]:
        """Columns of numbers, or of lists of them."""
        ids = self.rows.columns if isinstance(self.rows, TokenIds) else ()
        return list(dict.fromkeys([*ids, *map(carry_name, self.carry)]))

    @cached_property
    def columns(self) -> list[str]:
        """All columns that are read."""
        return list(dict.fromkeys([*self.texts, *self.nested, *self.groups, *self.numbers]))

    def found_in(self, names: Sequence[str], where: str, *, any_row: bool = False) -> RowPlan:
        """The plan for a source of these columns, see `Chat.found_in`."""
        taken = [*self.groups, *map(carry_name, self.carry)]
        if isinstance(self.rows, Chat):
            return replace(self, rows=self.rows.found_in(names, where, taken, any_row=any_row))
        if isinstance(self.rows, TokenIds):
            return replace(self, rows=self.rows.found_in(names, taken, any_row=any_row))
        return self


def carry_name(entry: str) -> str:
    """The column of an entry of `carry`: "reward" of "reward:float64"."""
    return entry.partition(":")[0]


def row_plan(parsing: Parsing, vocab_size: int = 0, finder: Finder | None = None) -> RowPlan:
    """The plan for rows with these options. Raises ConfigError for a wrong template of text.

    vocab_size: for token ids. finder: for conversations.
    """
    rows: Text | Chat | Pieced | TokenIds
    if parsing.input_ids_column is not None:
        rows = TokenIds(tuple(_ids(parsing)), vocab_size)
    elif parsing.segments_column is not None:
        columns = (*parsing.pair_columns,) or (parsing.segments_column,)
        rows = Pieced(columns, vocab_size, parsing.join_pieces)
    elif parsing.chats:
        rows = Chat(tuple(_conversations(parsing)), finder)
    elif parsing.pair_columns:
        rows = Text(tuple((("", name),) for name in parsing.pair_columns))
    elif parsing.text_template is None:
        rows = Text(((("", parsing.text_column),),))
    else:
        rows = Text((_template(parsing.text_template),))
    same = ("carry", "group_column", "group_prefix", "sample_by", "on_error", "max_row_size")
    return RowPlan(rows=rows, **{name: getattr(parsing, name) for name in same})


def _ids(parsing: Parsing) -> list[IdColumns]:
    named = vars(parsing.label_columns)
    if not parsing.pair_columns:
        return [IdColumns(str(parsing.input_ids_column), **named)]
    of_sides = {
        kind: [name.strip() for name in names.split(",")]
        for kind, names in named.items()
        if names is not None
    }
    return [
        IdColumns(
            ids,
            **{kind: names[side] for kind, names in of_sides.items()},
            prompt=parsing.prompt_column,
        )
        for side, ids in enumerate(parsing.pair_columns)
    ]


def _conversations(parsing: Parsing) -> list[tuple[str, ...]]:
    prompt = () if parsing.prompt_column is None else (parsing.prompt_column,)
    if parsing.pair_columns:
        return [(*prompt, name) for name in parsing.pair_columns]
    if parsing.response_column is not None:
        return [(*prompt, parsing.response_column)]
    name = parsing.messages_column
    return [] if name is None or name == "auto" else [(name,)]


def _template(template: str) -> tuple[tuple[str, str | None], ...]:
    try:
        parts = tuple((literal, name) for literal, name, _, _ in string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"--text-template {template!r} does not parse: {error}") from None
    names = [name for _, name in parts if name is not None]
    if not names or "" in names:
        raise ConfigError(
            f"--text-template {template!r} names no column; write {{title}} for column title"
        )
    return parts
