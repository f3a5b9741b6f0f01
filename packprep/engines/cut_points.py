"""Cuts of a large document into pieces for `tokenizers`, which do not change its ids.

`tokenizers` encodes a document on one thread and needs about 130 bytes per byte of text: 100 MB in
one row take 40 seconds and 13 GB. Pieces run in parallel, and only a few are in memory at a time.

A cut is after a line feed that follows a visible character and precedes a letter: "end of
line.
|Next line". `why_not` returns the reason why such a cut is not proven safe for a tokenizer, or
None if it is. It checks:

- added tokens: none spans the cut (no white space before another character) or includes white
  space to its left.
- normalizer: only those that keep a line feed and read nothing across it, and none that changes the
  ends of a text. One that turns it into a space is allowed before a pre-tokenizer that splits at
  every white space.
- pre-tokenizer: one of the patterns below, or one that splits at every white space. Each of them
  ends a piece after the line feed, whichever alternative matched; none has an alternative that
  continues from a line feed into a letter; none has a lookbehind. The lookahead of `\\s+(?!\\S)`
  decides only among two or more white spaces, and the visible character before the line feed leaves
  it one.
- or, where the model gets the whole text (SentencePiece BPE): no entry of the vocabulary has a line
  feed before another character, so no merge can cross the cut, and merges on one side never
  depend on the other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

# Before the line feed: a visible ASCII character, an ideograph or its full stop. After it: a
# letter, ASCII or ideograph. The line feed is first in the pattern, so that a search jumps to it.
# U+4E00-U+9F7F, letters always
_IDEOGRAPH = rb"(?:\xe4[\xb8-\xbf]|[\xe5-\xe8][\x80-\xbf]|\xe9[\x80-\xbd])[\x80-\xbf]"
_BEFORE = rb"(?:(?<=[!-~]\n)|(?<=\xe3\x80\x82\n)|(?<=" + _IDEOGRAPH + rb"\n))"
_CUT = re.compile(rb"\n(?=[A-Za-z]|" + _IDEOGRAPH + rb")" + _BEFORE)

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    *(  # Llama 3, GPT-4: numbers in threes; Qwen: digit by digit
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| "
        rf"?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
        for digits in (r"\p{N}{1,3}", r"\p{N}")
    ),
    *(  # Mistral's Tekken; o200k with contractions
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{suffix}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{suffix}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
        for digits in (r"\p{N}{1,3}", r"\p{N}")
        for suffix in ("", _CONTRACTIONS + "?")
    ),
}
_LOCAL_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"}
_SPACE_FOR_LINE_FEED = {"BertNormalizer", "Precompiled"}
_AT_WHITE_SPACE = {"WhitespaceSplit", "Whitespace", "BertPreTokenizer"}


def text_pieces(text: memoryview, size: int) -> Iterator[memoryview]:
    """UTF-8 text in pieces of at least `size` bytes, each ending at a cut.

    If there is no further cut, the rest is one piece.
    """
    start = 0
    while start < len(text):
        cut = _CUT.search(text, start + size)
        stop = cut.end() if cut else len(text)
        yield text[start:stop]
        start = stop


def why_not(tokenizer: Any) -> str | None:
    """Reason why this `tokenizers.Tokenizer` may not encode a document in pieces.

    None if the ids are proven to be the same.
    """
    for token in tokenizer.get_added_tokens_decoder().values():
        if token.lstrip or re.search(r"\s\S", token.content):
            return f"its added token {token.content!r} can reach over a line end"
    stages = _flat(tokenizer.pre_tokenizer, "pretokenizers")
    at_white_space = bool(stages) and stages[0]["type"] in _AT_WHITE_SPACE
    normalizers = _flat(tokenizer.normalizer, "normalizers")
    hides_spaces = any(normalizer["type"] == "Replace" for normalizer in normalizers)
    for normalizer in normalizers:
        if normalizer["type"] in _SPACE_FOR_LINE_FEED:
            local = at_white_space and not hides_spaces
        else:
            local = normalizer["type"] in _LOCAL_NORMALIZERS or normalizer.get("pattern") == {
                "String": " "
            }
        if not local:
            return f"its normalizer {normalizer['type']} may change the ends of a text or a line"
    if getattr(tokenizer.model, "dropout", None):
        return "its BPE has dropout"
    for stage in stages:
        if stage.get("add_prefix_space") or stage.get("prepend_scheme", "always") == "first":
            return f"its pre-tokenizer {stage['type']} treats the start of a text apart"
    if at_white_space or (stages and _ends_behind_line_feeds(stages[0])):
        return None
    if _merges_only(tokenizer.model) and all(_splits_only_at_spaces(stage) for stage in stages):
        vocabulary = tokenizer.get_vocab()
        crossing = next((entry for entry in vocabulary if re.search(r"\n[^\n]", entry)), None)
        if crossing is None and "\n" in vocabulary:
            return None
        return (
            f"its vocabulary entry {crossing!r} reaches over a line end"
            if crossing
            else "it has no line feed token"
        )
    return "its pre-tokenizer is not one known to end a piece at a line end"


def _merges_only(model: Any) -> bool:
    """True for a BPE whose ids depend on merges alone, not on the ends of a text."""
    if type(model).__name__ != "BPE":
        return False
    return not (model.ignore_merges or model.continuing_subword_prefix or model.end_of_word_suffix)


def _ends_behind_line_feeds(stage: dict[str, object]) -> bool:
    if stage["type"] == "Split":
        isolated = stage["behavior"] == "Isolated" and not stage["invert"]
        return isolated and stage["pattern"] in [{"Regex": pattern} for pattern in _PATTERNS]
    return stage["type"] == "ByteLevel" and bool(stage["use_regex"])


def _splits_only_at_spaces(stage: dict[str, object]) -> bool:
    return stage["type"] == "Split" and stage["pattern"] == {"String": " "}


def _flat(component: Any, children: str) -> list[dict[str, object]]:
    """A normalizer or pre-tokenizer as the list of its steps, from the JSON it pickles to."""
    steps: list[dict[str, object]] = []
    pending = [json.loads(component.__getstate__())] if component is not None else []
    while pending:
        step = pending.pop(0)
        if step["type"] == "Sequence":
            pending = step[children] + pending
        else:
            steps.append(step)
    return steps
