"""Search for the characters on which a fast engine differs from the reference.

Engines split text into words by Unicode tables of different versions, and fold and compose letters
differently. So each code point is tried beside a letter, mark, number, punctuation, apostrophe,
space and line end, alone, and in pairs that compose or change places.

A difference shows only where the vocabulary has a token across it: an apostrophe and a long s are
one word or two, and both are the same ids without a token of an apostrophe and the byte C5. So a
byte-level BPE is swept with another vocabulary, in which each end of a character merges with the
beginning of the next. The result holds for every vocabulary with the same normalizer and
pre-tokenizer. Other models, such as SentencePiece BPE, are swept as they are.

Many code points share a text; a text that differs is halved. The reference needs about 2
CPU-seconds. Letters of large alphabets of one kind (ideographs, Hangul, private use) are tried
in rows, and only some of them in every place.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from packprep.engines.backends import Engine
from packprep.engines.compare import unequal
from packprep.engines.guard import Guard

# First code point and the one after the last. Code points outside are always in the guard: they are
# unassigned or private.
SWEPT = (
    (0x80, 0xD800),
    (0xE000, 0x14680),
    (0x16000, 0x19000),
    (0x1AFF0, 0x1B300),
    (0x1BC00, 0x1BCB0),
    (0x1CC00, 0x33480),
    (0xE0000, 0xE0200),
)
# Ideographs, Yi, Hangul, private use, hieroglyphs, Tangut: what every engine's tables know (Unicode
# 13). Code points between them, assigned later or not at all, are tried in every place.
_UNIFORM = (
    (0x3400, 0x4DC0),
    (0x4E00, 0x9FFD),
    (0xA000, 0xA015),
    (0xA016, 0xA48D),
    (0xAC00, 0xD7A4),
    (0xE000, 0xF900),
    (0x14400, 0x14647),
    (0x17000, 0x187F8),
    (0x18800, 0x18CD6),
    (0x18D00, 0x18D09),
    (0x20000, 0x2A6DE),
    (0x2A700, 0x2B735),
    (0x2B740, 0x2B81E),
    (0x2B820, 0x2CEA2),
    (0x2CEB0, 0x2EBE1),
    (0x2F800, 0x2FA1E),
    (0x30000, 0x3134B),
)
_UNIFORM_STEP = 17  # of those that are tried in every place
# A code point is X. Each text has many of these one after the other, so the neighbours are on
# both sides of X.
_PLACES = ("aX", "a'X", "X's ", " X", "1X", ".X", "X\n", "AX\u0301", "\u0301X")
# Code points that a pattern may fold into an ASCII letter, after an apostrophe after each class.
_CASED = (
    (0x80, 0x590),
    (0x10A0, 0x1100),
    (0x13A0, 0x1400),
    (0x1C80, 0x2C80),
    (0xA640, 0xAC00),
    (0xFB00, 0xFB50),
    (0xFF00, 0x10000),
)
_CONTRACTIONS = ("A'X", "1'X", ".'X", "\u0301'X", "\n'X", "XA'X")
_TEXT = 64  # code points per text
_ALONE = ((0x80, 0x3100), (0xF900, 0x10000), (0xE0000, 0xE0200))
# More code points than this are no exception: the engine is another tokenizer.
LIMIT = 12_000

Points = tuple[int, ...]
Spans = tuple[tuple[int, int], ...]
Render = Callable[[Points], str]


def unswept() -> Guard:
    """The code points that no sweep tries, without surrogates, which no text holds."""
    ends = [end for span in SWEPT for end in span][1:]
    spans = list(zip(ends[::2], [*ends[1::2], 0x110000], strict=True))
    return Guard(tuple((first, end - 1) for first, end in spans[1:]))


def find_guard(fast: Engine, reference: Engine, spans: Spans = SWEPT) -> Guard | None:
    """Code points whose texts the reference must encode; None if there are more than LIMIT.

    spans: code points to try. Both engines have the same tokenizer: that of `swept_tokenizer`, or
    one that is not byte-level. Raises InputError if one cannot encode.
    """
    found: set[int] = set()
    for render, groups, blamed in _families(found, spans):
        left = [tuple(point for point in group if point not in found) for group in groups]
        found |= set(map(blamed, _culprits(fast, reference, render, left)))
        if len(found) > LIMIT:
            return None
    return Guard.from_points(found)


def _families(
    found: set[int], spans: Spans
) -> Iterator[tuple[Render, list[Points], Callable[[int], int]]]:
    """Texts to try.

    A function that writes a group of code points as a text, the groups, and the code point to blame
    for the one that makes a text differ. found: code points that are in the guard already; later
    texts do without them.
    """
    tried = set(_points(spans))
    uniform = [point for point in _points(_UNIFORM) if point in tried]
    varied = sorted(tried.difference(uniform)) + uniform[::_UNIFORM_STEP]
    yield lambda points: f"1 a'{_row(points)}'s", _groups(uniform), _itself
    for place in _PLACES:
        yield partial(_repeated, place), _groups(varied), _itself
    cased = [point for point in _points(_CASED) if point in tried]
    for place in _CONTRACTIONS:
        yield partial(_repeated, place), _groups(cased), _itself
    yield (
        lambda points: chr(points[0]),
        [(point,) for point in _points(_ALONE) if point in tried],
        _itself,
    )

    parts = {point: unicodedata.normalize("NFD", chr(point)) for point in sorted(tried)}
    composed = [
        point for point, text in parts.items() if len(text) > 1 and found.isdisjoint(map(ord, text))
    ]
    yield (
        lambda points: "".join([f"{parts[point]}a" for point in points]),
        _groups(composed),
        lambda point: ord(parts[point][-1]),
    )
    classes = {point: unicodedata.combining(chr(point)) for point in varied}
    marks = [point for point in varied if classes[point] and point not in found]
    ladder = _row(
        sorted(
            {classes[point]: point for point in reversed(marks)}.values(),
            key=lambda point: classes[point],
        )
    )
    yield (
        lambda points: "".join([f"a{ladder}{chr(point)}{ladder[0]}" for point in points]),
        _groups(marks, 4),
        _itself,
    )


def _culprits(
    fast: Engine, reference: Engine, render: Render, groups: Iterable[Points]
) -> set[int]:
    """Code points without which no group differs."""

    def differing(groups: Iterable[Points]) -> list[Points]:
        tried = [group for group in groups if group]
        if not tried:
            return []
        texts = pa.array([render(group) for group in tried], pa.large_string())
        return [tried[row] for row in unequal(*fast.encode(texts), *reference.encode(texts))]

    culprits: set[int] = set()
    bad = differing(groups)
    while bad and len(culprits) <= LIMIT:
        culprits |= {group[0] for group in bad if len(group) == 1}
        wider = [group for group in bad if len(group) > 1]
        halves = differing(half for group in wider for half in _halves(group))
        of_halves = set(halves)
        # Neither half differs alone: the last code point of the shortest prefix that does.
        joint = [group for group in wider if not of_halves & set(_halves(group))]
        culprits |= {_shortest_prefix(group, differing)[-1] for group in joint}
        bad = halves + differing(
            tuple(point for point in group if point not in culprits) for group in joint
        )
    return culprits


def _shortest_prefix(
    group: Points, differing: Callable[[Iterable[Points]], list[Points]]
) -> Points:
    return differing(group[: stop + 1] for stop in range(len(group)))[0]


def _halves(group: Points) -> tuple[Points, Points]:
    return group[: len(group) // 2], group[len(group) // 2 :]


def _groups(points: Sequence[int], size: int = _TEXT) -> list[Points]:
    return [tuple(points[at : at + size]) for at in range(0, len(points), size)]


def _points(spans: Spans) -> Iterator[int]:
    return itertools.chain.from_iterable(itertools.starmap(range, spans))


def _row(points: Iterable[int]) -> str:
    return "".join(map(chr, points))


def _repeated(place: str, points: Points) -> str:
    """The code points in their places; one alone three times, so that it is its own neighbour."""
    times = 3 if len(points) == 1 else 1
    return "".join([place.replace("X", chr(point)) for point in points]) * times


def _itself(point: int) -> int:
    return point


def splitting(tokenizer_json: bytes) -> dict[str, object] | None:
    """Parts of a byte-level tokenizer.json that decide how a text is split, or None for another.

    Read without parsing its model: the keys `normalizer` and `pre_tokenizer`.
    """
    text = tokenizer_json.decode()
    parts = {}
    for name in ("normalizer", "pre_tokenizer"):
        match = re.search(rf'"{name}"\s*:\s*', text)  # quotes inside JSON strings are escaped
        parts[name] = json.JSONDecoder().raw_decode(text, match.end())[0] if match else None
    written = json.dumps(parts).replace('"trim_offsets": false', '"trim_offsets": true')  # no ids
    same: dict[str, object] = json.loads(written)
    return same if '"ByteLevel"' in json.dumps(same["pre_tokenizer"]) else None


def swept_tokenizer(parts: Mapping[str, object]) -> bytes:
    """A BPE tokenizer that splits as `splitting` says, and whose ids show every split."""
    vocabulary, merges = _showing()
    byte_level = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), True)
    swept = {
        "version": "1.0",
        "added_tokens": [],
        **parts,
        "decoder": {"type": "ByteLevel", **byte_level},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }
    return json.dumps(swept).encode()


def _showing() -> tuple[dict[str, int], list[list[str]]]:
    """Vocabulary and merges of a byte-level BPE whose ids show where a text was split.

    The last byte of a character merges with the first of the next. The bytes of a character of more
    than one byte never merge, so each place between two characters is decided apart from the
    others. Two ASCII characters in a row merge only in "'s".
    """
    byte = byte_names()
    neighbours = [
        byte[ord(c)] for c in sorted(set("".join((*_PLACES, *_CONTRACTIONS))) - {"X", "\u0301"})
    ]
    lasts, firsts = byte[0x80:0xC0], byte[0xC2:0xF5]
    apostrophe, s = byte[ord("'")], byte[ord("s")]
    pairs = [
        *itertools.product(lasts, neighbours),
        (apostrophe, s),
        *((last + apostrophe, s) for last in lasts),
        *itertools.product(neighbours, firsts),
        *itertools.product(lasts, firsts),
    ]
    tokens = [*byte, *("".join(pair) for pair in pairs)]
    return {token: number for number, token in enumerate(tokens)}, [list(pair) for pair in pairs]


def byte_names() -> list[str]:
    """The character that a byte-level vocabulary has for each byte.

    Visible bytes are themselves, the others follow from U+0100 on.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = itertools.count(0x100)
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]
