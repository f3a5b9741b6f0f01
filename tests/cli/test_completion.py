"""Completion as a shell asks for it: click's protocol, in this process and in a new one."""

import os
from unittest import mock

import pytest
from click.shell_completion import BashComplete

from packprep.cli.main import COMMANDS, cli
from packprep.config.grammar.option import STRATEGY_NAMES

STRATEGIES, POSITIONS = list(STRATEGY_NAMES), ("position_ids", "document_starts")


def complete(line: str) -> list[str]:
    """Answers to bash for the last word of a line, each "kind,value"."""
    place = str(len(line.split(" ")) - 1)
    with mock.patch.dict(os.environ, {"COMP_WORDS": line, "COMP_CWORD": place}):
        return BashComplete(cli, {}, "packprep", "_PACKPREP_COMPLETE").complete().split()


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("packprep ", list(COMMANDS)),
        ("packprep st", ["stats", "store"]),
        ("packprep build --str", ["--strategy", "--stride"]),
        ("packprep build --strategy ", STRATEGIES),
        ("packprep build docs.jsonl --strategy b", ["best_fit", "balanced"]),
        ("packprep build --overflow=", ["split", "truncate", "drop", "error"]),
        ("packprep build --columns document_ids,", [f"document_ids,{name}" for name in POSITIONS]),
        ("packprep plan --strategy ", [*STRATEGIES, "all"]),
        ("packprep plan --strategy best_fit,gr", ["best_fit,greedy"]),
        ("packprep plan --strategy greedy,best_fit,gr", []),
        ("packprep plan --overflow a", ["all"]),
        ("packprep verify packed --level ", ["fast", "full"]),
    ],
)
def test_commands_options_and_choices_complete(line: str, answers: list[str]) -> None:
    assert complete(line) == [f"plain,{answer}" for answer in answers]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("packprep build do", "file,do"),
        ("packprep build docs.jsonl -o ", "dir,"),
        ("packprep build --tokenizer tok", "file,tok"),
        ("packprep plan le", "file,le"),
        ("packprep show pa", "dir,pa"),
        ("packprep stats packed re", "file,re"),
        ("packprep merge 2025 -o ", "dir,"),
    ],
)
def test_paths_are_left_to_the_shell(line: str, answer: str) -> None:
    assert complete(line) == [answer]
