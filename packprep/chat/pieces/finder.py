"""Renders conversations by a function of the user, where a chat template is for others.

The pieces say what is trained. As with a template, no text of a message becomes a special token,
whatever it spells: only those that the renderer writes itself count. Where a row spells one, or a
string of it could be part of one, the row is rendered once more with marks inside these strings.
Text of messages that is not in the pieces is counted as left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from packprep.chat.conversations import BadRowError, Conversation, Message
from packprep.chat.left_out import (
    LeftOut,
    not_contained,
    unwritten_keys,
    without_repeated,
    without_written,
)
from packprep.chat.marks import unmark, with_texts
from packprep.chat.pieces.pieces import Piece, as_rendered, read_pieces, runs_of
from packprep.chat.rendering.renderer import Renderer, RendererError
from packprep.chat.special_tokens import Span, Specials, strings
from packprep.chat.template import RenderError, with_objects
from packprep.chat.turns import Rendered


class PieceFinder:
    """Makes pieces of conversations; takes the place of a `TurnFinder`.

    specials: every special token of the tokenizer. joined: see pieces.py.
    """

    def __init__(
        self, renderer: Renderer, specials: Iterable[str], vocab_size: int, *, joined: bool
    ) -> None:
        self._renderer = renderer
        self._tokens = Specials(specials, None)
        self._vocab_size = vocab_size
        self._joined = joined

    def render(self, conversation: Conversation) -> Rendered:
        """The pieces of a conversation as text.

        Raises RenderError where the renderer fails, makes no pieces, or where its own special
        tokens cannot be found.
        """
        pieces = self._pieces(conversation)
        runs = runs_of(pieces, joined=self._joined)
        rendered = as_rendered(runs, self._specials(conversation, pieces))
        return replace(rendered, left_out=self._left_out(conversation, pieces, rendered.text))

    def unread(self, conversation: Conversation, keys: Collection[str]) -> Collection[str]:
        """None of the keys: the renderer gets all of them."""
        return ()

    def _pieces(self, conversation: Conversation) -> list[Piece]:
        messages: list[Message] = [
            message | {"train": False} if number in conversation.untrained else message
            for number, message in enumerate(conversation.messages)
        ]
        name = self._renderer.name
        try:
            made = self._renderer.call(messages, conversation.tools, conversation.variables)
            return read_pieces(made, f"the result of {name}", self._vocab_size)
        except RendererError as error:
            raise RenderError(str(error)) from None
        except BadRowError as error:
            detail = str(error) if name in str(error) else f"{error}, from {name}"
            raise RenderError(detail) from None

    def _text(self, conversation: Conversation) -> str:
        return "".join(piece.text for piece in self._pieces(conversation))

    def _specials(
        self, conversation: Conversation, pieces: Sequence[Piece]
    ) -> Callable[[int], list[Span] | None]:
        """The renderer's own special tokens in the text of each run; None if it has no others."""
        everything = [conversation.messages, conversation.tools, conversation.variables]
        if not any(map(self._tokens.is_risky, strings(everything))):
            return lambda _: None
        texts = self._texts(pieces)
        for broken in self._tokens.broken(conversation):
            with suppress(RenderError):
                marked = self._pieces(broken)
                unmarked = [unmark(text) for text in self._texts(marked)]
                others = [(piece.ids, piece.train) for piece in marked]
                if [each.text for each in unmarked] == texts and others == [
                    (piece.ids, piece.train) for piece in pieces
                ]:
                    own = [self._tokens.spans_within(each.pieces) for each in unmarked]
                    return lambda run: (
                        None if own[run] == self._tokens.spans(texts[run]) else own[run]
                    )
        raise RenderError(
            "its text has special tokens that cannot be told apart from those of "
            f"{self._renderer.name}; remove them from the text"
        )

    def _texts(self, pieces: Sequence[Piece]) -> list[str]:
        """Text of each run."""
        runs = runs_of(pieces, joined=self._joined)
        return ["".join(piece.text for piece in run) for run in runs]

    def _left_out(
        self, conversation: Conversation, pieces: Sequence[Piece], text: str
    ) -> list[LeftOut]:
        """Text of the messages that is not in the pieces; unknown if some are token ids.

        Arguments of calls are their values: a renderer may write JSON text in a form of its own.
        """
        if any(piece.ids is not None for piece in pieces):
            return []
        messages = [*map(with_objects, conversation.messages)]
        conversation = replace(conversation, messages=messages)
        _, texts = with_texts(conversation, lambda _, value: value)
        parts = not_contained(texts, text)
        if any(parts):
            parts = without_written(conversation, text, parts, self._text)
        others = without_repeated(unwritten_keys(conversation, text, self._text), texts)
        left = [
            LeftOut(each.message, each.field, part)
            for each, part in zip(texts, parts, strict=True)
            if part.strip()
        ]
        return sorted([*left, *others])
