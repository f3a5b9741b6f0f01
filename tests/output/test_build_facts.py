from typing import Any

import pytest

from packprep.output.build_facts import build_facts, difference, resume_obstacle

INPUTS: dict[str, Any] = {
    "options": {"max_length": 64, "on_error": "stop"},
    "sources": [{"sha256": "a"}, {"sha256": "b"}],
    "tokenizer": {"sha256": "t"},
}
FACTS = build_facts(INPUTS, names=["a.jsonl", "b.jsonl"])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"options": {"max_length": 32, "on_error": "stop"}}, "max_length was 64, now 32"),
        ({"sources": [{"sha256": "a"}, {"sha256": "c"}]}, "b.jsonl changed"),
        ({"sources": [{"sha256": "a"}]}, "2 source files before, 1 now"),
        ({"tokenizer": {"sha256": "u"}}, "another tokenizer"),
        ({"mix": []}, "other mix"),
        ({"options": {"max_length": 64, "on_error": "skip"}}, ""),
        ({}, ""),
    ],
)
def test_a_change_of_the_inputs_is_named_and_on_error_may_change(
    changed: dict[str, Any], words: str
) -> None:
    new = build_facts(INPUTS | changed, names=["a.jsonl", "b.jsonl"])
    assert resume_obstacle(FACTS, new) == words


def test_a_build_of_another_version_is_not_resumed_unless_it_says_nothing_of_it() -> None:
    streams = FACTS["random_streams"]
    other = FACTS | {"random_streams": streams | {"holdout": "00" * 16}}
    assert resume_obstacle(other, FACTS) == "packprep draws other random bits now: holdout"
    fewer = {name: bits for name, bits in streams.items() if name != "holdout"}
    assert resume_obstacle(FACTS | {"random_streams": fewer}, FACTS) == ""
    older = {key: value for key, value in FACTS.items() if key != "random_streams"}
    assert resume_obstacle(older | {"staging_version": 2}, FACTS).startswith(
        "staging version was 2"
    )
    assert difference({"inputs": INPUTS}, FACTS) == ""  # a manifest names no versions
