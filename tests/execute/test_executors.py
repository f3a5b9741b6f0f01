"""The two tables of executors, what options they take and how they run, have the same rows."""

from contextlib import nullcontext
from typing import Any, get_args, get_type_hints

import pytest

from packprep.config.build_config import BuildConfig
from packprep.config.executors import EXECUTORS
from packprep.execute.pipeline import RUNNERS, build_share
from packprep.support.errors import ConfigError
from tests.helpers.errors import refused


def test_an_executor_has_a_row_in_both_tables_and_is_a_value_of_the_option() -> None:
    values = get_args(get_type_hints(BuildConfig)["executor"])
    assert [*EXECUTORS] == [*RUNNERS] == [*values]


def test_an_executor_of_many_commands_has_shares_and_no_other_one() -> None:
    for name, executor in EXECUTORS.items():
        assert (RUNNERS[name].share is not None) == executor.many_commands
        assert executor.many_processes >= executor.many_commands


ASKED: dict[str, dict[str, Any]] = {
    "keep_tokens": {"keep_tokens": "store"},
    "isolate": {"isolate": True},
    "standard_input": {"sources": ("-",)},
}


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("asked", ASKED)
def test_an_executor_refuses_what_its_row_says_and_nothing_else(executor: str, asked: str) -> None:
    options: dict[str, Any] = {"sources": ("a.jsonl",), "executor": executor} | ASKED[asked]
    sentence = EXECUTORS[executor].refuses.get(asked)
    with refused(ConfigError, sentence) if sentence else nullcontext():
        BuildConfig(**options)


def test_no_row_refuses_what_is_not_tested_here() -> None:
    assert {key for executor in EXECUTORS.values() for key in executor.refuses} == {*ASKED}


def test_a_share_of_an_executor_without_tasks_is_refused() -> None:
    with refused(ConfigError, "executor local has no tasks; call packprep.build"):
        build_share(BuildConfig(sources=("a.jsonl",), output="out"))
