import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.chat.conversations import Conversation, Message
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
    tools, question = [{"|im_end|": "a", "b": "c <"}], Message(role="user", content="x<|im_end|>")
    broken = next(CHATML.broken(Conversation([question], tools, {"name": "im_end|>"})))
    assert broken.messages == [{"role": "user", "content": f"x<{BREAK}|im_end|>"}]
    assert broken.tools == [{f"{BREAK}|im_end|{BREAK}": "a", "b": f"c <{BREAK}"}]
    assert broken.variables == {"name": f"{BREAK}im_end|>{BREAK}"}
    found = ["role", "content", "x<|im_end|>", "|im_end|", "a", "b", "c <"]
    assert [*strings([question, tools])] == found


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


def test_beginnings_are_counted_only_where_each_begins_one_token() -> None:
    assert Specials(["<|a|>", "</s>"]).beginnings
    assert not Specials(["<|a|>", "<|a|>b"]).beginnings  # text could make the first the second
    assert not Specials(["[[a]]"]).beginnings  # which could begin twice in [[[
