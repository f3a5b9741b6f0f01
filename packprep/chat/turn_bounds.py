"""Bounds of turns in marked renderings.

The rendering of the first messages ends with some text after its last mark. The same text follows
the same mark in the rendering of all messages, and a turn begins (or ends) there.

A turn ends with what its template also writes when another message follows. What stands at the end
of a conversation alone is not part of the last turn: the EOS of the whole conversation, as in
Phi-3's template, or a generation prompt that is written whether it is asked for or not. Where the
two renderings have no special token in common after the turn, as with gpt-oss, the last turn ends
with the token of its own.
"""

from dataclasses import dataclass
from os.path import commonprefix

from .marks import NO_TEXT, Marked, Specials, Unmarked
from .types import RenderError

ADVICE = "give a template with {% generation %} by --chat-template, or --train-on all"

Place = tuple[int, int]  # number of marks before it, position in the unmarked text


@dataclass(frozen=True)
class Turn:
    """Bounds of a turn.

    at_text: True for a document of one turn that does not begin with what a model is prompted with.
    """

    first: Place
    last: Place
    at_text: bool = False


def end_in(rendering: Unmarked, beginning: Unmarked) -> Place | None:
    """Place in `rendering` where `beginning` ends; None unless there is exactly one."""
    tail, spots = _tail_and_spots(beginning, rendering)
    places = [
        (before, position + len(tail))
        for before, position, behind in spots
        if behind.startswith(tail)
    ]
    return places[0] if len(places) == 1 else None


def _tail_and_spots(
    beginning: Unmarked, rendering: Unmarked
) -> tuple[str, list[tuple[int, int, str]]]:
    """The text after the last mark of `beginning`, and the places of that mark in `rendering`."""
    number = beginning.marks[-1][1]
    return beginning.literals[-1], rendering.behind(number) if number != NO_TEXT else []


@dataclass(frozen=True)
class Ending:
    """Text of the template after the last text of a turn.

    place: where it begins in the rendering of all messages.
    last: where the turn ends the conversation.
    followed: where another message follows, up to the next text; None if no such rendering is
    known.
    """

    place: Place
    last: str
    followed: str | None


def ending(rendering: Unmarked, until: Unmarked, followed: Unmarked | None) -> Ending | None:
    """The ending of a turn; None if it cannot be found.

    rendering: of all messages; it is `until` or `followed`. until: ends with the turn. followed:
    another message follows; None if no such rendering is known.
    """
    ends = until.at_ends
    pairs = [] if followed is None else [(until, followed), (ends, followed.at_ends)]
    for is_alike in (True, False):
        for short, long in pairs if is_alike else pairs[::-1]:
            tail, spots = _tail_and_spots(short, long)
            spots = [spot for spot in spots if not is_alike or spot[2].startswith(tail)]
            if len(spots) == 1:
                before, position, behind = spots[0]
                if rendering is until:
                    before, position = len(short.marks), short.marks[-1][0]
                rest = ends.marks[-1][0] - short.marks[-1][0]  # of the text after its mark
                return Ending((before, position + rest), tail[rest:], behind[rest:])
    if rendering is not until:
        return None
    position = ends.marks[-1][0]
    return Ending((len(ends.marks), position), until.text[position:], None)


class EndFinder:
    """Finds the end-of-turn token in the ending of a turn.

    eos: the token that the template knows by this name; None without one.
    """

    def __init__(self, specials: Specials, eos: str | None) -> None:
        self._specials = specials
        self._eos = eos

    def size(
        self, end: Ending, skipped: int, rendering: Unmarked, first: int, is_last: bool
    ) -> int | None:
        """Characters of an ending that belong to its turn, up to the end-of-turn token.

        It is the last special token there; without one, all that both renderings have is the
        turn's. skipped: its first characters, which belong to the beginning of the turn, and are
        not counted. rendering: of all messages. first: position where the turn begins. is_last: no
        message follows. Returns None if one does, and the token is of last turns alone.
        """
        last, begins = end.last[skipped:], end.last[:skipped]
        is_known = end.followed is not None and end.followed.startswith(begins)
        followed = (end.followed or "")[skipped:] if is_known else last
        if followed.startswith(last):
            return self._closed(last) or len(last)
        common = self._common(last, followed)
        common = self._without_header(common, followed, rendering.literals[0])
        if size := self._closed(common):
            return size
        prompt = self._prompt(last, rendering.text[:first])
        size = self._closed(last.removesuffix(prompt))
        if size and not is_last:
            return None
        return size or len(common)

    def _closed(self, text: str) -> int:
        """Characters up to the end of the last special token; 0 without one."""
        spans = self._specials.closing_spans(text)
        return spans[-1][1] if spans else 0

    def _common(self, last: str, followed: str) -> str:
        """The beginning that both have, without a part of a special token."""
        size = len(commonprefix([last, followed]))  # noqa: RUF071 of characters, not of paths
        for text in (last, followed):
            for start, stop in self._specials.closing_spans(text):
                size = start if start < size < stop else size
        return last[:size]

    def _without_header(self, common: str, followed: str, opening: str) -> str:
        """The text without the beginning of the next message's header at its end.

        opening: of the conversation, which begins with such a header too, perhaps after its BOS:
        a first token that is in no header.
        """
        first, last = next(iter(self._specials.closing_spans(opening)), (0, 0))
        has_bos = not opening[:first].strip() and opening[first:last] not in followed
        behind_bos = opening[last:] if has_bos else ""
        spans = self._specials.closing_spans(common)
        inside = {place for start, stop in spans for place in range(start + 1, stop)}
        for start in range(len(common)):
            header = common[start:]
            if start in inside or (self._eos and self._eos in header):
                continue
            if any(text.startswith(header) for text in (opening, behind_bos, behind_bos.lstrip())):
                return common[:start]
        return common

    def _prompt(self, last: str, before: str) -> str:
        """The generation prompt at the end of a rendering, which is also before its last turn."""
        start = len(last) - len(commonprefix([last[::-1], before[::-1]]))  # noqa: RUF071
        for first, stop in self._specials.closing_spans(last):
            start = stop if first < start < stop else start
        return last[start:]


def generated_blocks(rendering: Unmarked) -> list[Turn]:
    """Spans of {% generation %} blocks that are not empty.

    Raises RenderError where a filter of the template has lost a bound of one.
    """
    starts, stops = rendering.generated[::2], rendering.generated[1::2]
    if len(starts) != len(stops):
        raise RenderError(
            "cannot find the trained text: the template changes what is around its {% generation "
            "%} blocks; put no filter around them, or choose --train-on all"
        )
    return [Turn(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop]


def without(turns: list[Turn], marked: Marked, size: int, least: int) -> list[Turn]:
    """The turns of {% generation %} blocks that hold no text of an untrained message.

    size: number of the first messages, none of which is trained. least: mark with which the turns
    behind them begin. Raises RenderError where it cannot be told which block an untrained message
    has.
    """
    hidden = {number for number in marked.conversation.untrained if number >= size}
    untrained, kept, mixed = hidden | {*range(size)}, [], set[int]()
    for turn in turns:
        inside = {*marked.owners[turn.first[0] : turn.last[0]]}
        hidden -= inside
        if not inside & untrained:
            kept += [turn] if turn.first[0] >= least else []
        elif inside - untrained:
            mixed |= inside & untrained
    if unclear := hidden | mixed:
        raise RenderError(
            f"cannot find a block of message {min(unclear)} alone, which is not trained; give each "
            "message a {% generation %} block of its own, by --chat-template"
        )
    return kept
