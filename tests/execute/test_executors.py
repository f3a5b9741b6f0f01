"""The two tables of executors, what options they take and how they run, have the same rows."""

from typing import get_args, get_type_hints

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


def test_a_share_of_an_executor_without_tasks_is_refused() -> None:
    with refused(ConfigError, "executor local has no tasks; call packprep.build"):
        build_share(BuildConfig(sources=("a.jsonl",), output="out"))
