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


def test_a_build_of_other_random_streams_is_not_resumed() -> None:
    older = FACTS | {"random_streams": FACTS["random_streams"] | {"holdout": "00" * 16}}
    assert resume_obstacle(older, FACTS) == "packprep draws other random bits now: holdout"


def test_a_purpose_that_one_of_two_versions_lacks_is_no_obstacle() -> None:
    streams = FACTS["random_streams"]
    older = {name: bits for name, bits in streams.items() if name != "holdout"}
    assert resume_obstacle(FACTS | {"random_streams": older}, FACTS) == ""


def test_a_build_of_an_older_staging_version_is_not_resumed() -> None:
    older = {key: value for key, value in FACTS.items() if key != "random_streams"}
    assert resume_obstacle(older | {"staging_version": 2}, FACTS) == (
        "staging version was 2, now 4"
    )


def test_the_inputs_of_a_manifest_are_compared_without_versions() -> None:
    assert difference({"inputs": INPUTS}, FACTS) == ""
