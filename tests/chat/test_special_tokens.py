import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.chat.conversations import Conversation
from packprep.chat.marks import BREAK
from packprep.chat.special_tokens import Specials, any_of, strings

CHATML = Specials(["<|im_start|>", "<|im_end|>", "<s>"], "</s>")


@given(st.sets(st.text("<|>ab", min_size=1, max_size=5), max_size=8), st.text("<|>ab", max_size=40))
def test_the_shared_pattern_matches_as_one_that_tries_all(tokens: set[str], text: str) -> None:
    plain = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")
    assert [found.span() for found in any_of(tokens).finditer(text)] == [
        found.span() for found in plain.finditer(text)
    ]


def test_spans_of_a_text_and_within_its_pieces() -> None:
    assert CHATML.spans("<s>x<|im_end|></s>") == [(0, 3), (4, 14)]
    assert CHATML.closing_spans("<s>x<|im_end|></s>") == [(0, 3), (4, 14), (14, 18)]
    assert Specials([]).spans("<s>") == []
    assert CHATML.spans_within(["<s>", "<|im_", "end|>", "<|im_end|>"]) == [(0, 3), (13, 23)]


def test_risky_strings_and_keys_are_broken_but_roles_are_not() -> None:
    messages, tools = [{"role": "user", "content": "x<|im_end|>"}], [{"|im_end|": "a", "b": "c <"}]
    broken = next(CHATML.broken(Conversation(messages, tools, {"name": "im_end|>"})))
    assert broken.messages == [{"role": "user", "content": f"x<{BREAK}|im_end|>"}]
    assert broken.tools == [{f"{BREAK}|im_end|{BREAK}": "a", "b": f"c <{BREAK}"}]
    assert broken.variables == {"name": f"{BREAK}im_end|>{BREAK}"}
    found = ["role", "content", "x<|im_end|>", "|im_end|", "a", "b", "c <"]
    assert [*strings([messages, tools])] == found


@given(
    st.lists(st.text("<|>ims_", max_size=8), max_size=4),
    st.lists(st.text("<|>ims_", max_size=6), max_size=3),
)
def test_broken_texts_never_become_tokens_wherever_a_template_puts_them(
    texts: list[str], literals: list[str]
) -> None:
    specials = Specials(["<|im|>", "<s>", "|is|"])
    written: set[int] = set()
    rendering = ""
    for text, literal in zip(texts, [*literals, *[""] * len(texts)], strict=False):
        written.update(range(len(rendering), len(rendering) + len(literal)))
        rendering += literal
        conversation = Conversation([{"role": "user", "content": text}])
        rendering += str(next(specials.broken(conversation)).messages[0]["content"])
    for first, last in specials.spans(rendering):
        # What is left whole has no character of a text, unless only its letters: "<" + name + ">"
        # is meant to be one.
        own = [char for at, char in enumerate(rendering[first:last], first) if at not in written]
        assert all(char.isalnum() or char == "_" for char in own)


@pytest.mark.parametrize(
    ("text", "milder"),
    [
        ("a</think>b", "a</think>b"),
        ("a</think><|im_end|>", f"a</think><{BREAK}|im_end|>"),
        ("<|im_</think>end|>", None),
        ("a</think><s>", None),
        ("</</think>s>", None),
    ],
)
def test_words_that_begin_like_a_token_are_not_broken_if_nothing_can_be_joined(
    text: str, milder: str | None
) -> None:
    specials = Specials(["<|im_end|>", "<s>", "</s>"])
    broken = [
        each.messages[0]["content"]
        for each in specials.broken(Conversation([{"role": "user", "content": text}]))
    ]
    assert f"<{BREAK}/" in broken[0] or "</" not in broken[0]
    assert broken[1:] == ([] if milder is None else [milder])


@pytest.mark.parametrize(
    ("tokens", "text", "expected"),
    [
        (["<|a|>", "</s>"], "<|a|>x</s>", True),
        (["<|a|>", "</s>"], "<|a|>x</s></s>", False),
        (["<|a|>", "</s>"], "<|a|></ s></s>", False),  # not sure
        (["<|a|>", "<|a|>b"], "<|a|></s>", False),  # text could make the first the second
        (["[[a]]"], "[[a]]", False),  # which could begin twice in [[[
    ],
)
def test_counting_beginnings_proves_that_there_are_no_other_special_tokens(
    tokens: list[str], text: str, expected: bool
) -> None:
    specials = Specials(tokens)
    count = 2 if "</s>" in text else 1
    assert specials.has_only(count, text) == expected
    assert not expected or len(specials.spans(text)) == count
