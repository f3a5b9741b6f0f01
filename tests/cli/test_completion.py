"""Completion as a shell asks for it: click's protocol, through the environment of a new process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from packprep.cli.main import COMMANDS
from packprep.config.option import STRATEGY_NAMES

STRATEGIES = list(STRATEGY_NAMES)


def packprep(**environment: str) -> str:
    """Standard output of `packprep` alone with these variables."""
    done = subprocess.run(
        [sys.executable, "-m", "packprep"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def complete(line: str) -> list[str]:
    """Answers to bash for the last word of a line, each "kind,value"."""
    place = str(len(line.split(" ")) - 1)
    return packprep(_PACKPREP_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=place).split()


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("packprep ", list(COMMANDS)),
        ("packprep st", ["stats", "store"]),
        ("packprep build --str", ["--strategy", "--stride"]),
        ("packprep build --strategy ", STRATEGIES),
        ("packprep build docs.jsonl --strategy b", ["best_fit", "balanced"]),
        ("packprep build --overflow=", ["split", "truncate", "drop", "error"]),
        (
            "packprep build --columns document_ids,",
            ["document_ids,position_ids", "document_ids,document_starts"],
        ),
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


def test_the_line_of_the_readme_makes_bash_complete_strategies() -> None:
    shell = shutil.which("bash")
    if (
        shell is None
        or subprocess.run([shell, "-c", "((BASH_VERSINFO[0] >= 5))"], check=False).returncode
    ):
        pytest.skip("there is no bash of version 5 here")
    line = 'eval "$(_PACKPREP_COMPLETE=bash_source packprep)"'
    assert line in (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text()
    script = (
        f"{line}\n"
        "complete -p packprep\n"
        "COMP_WORDS=(packprep build --strategy b) COMP_CWORD=3\n"
        "_packprep_completion packprep\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shell, "-c", script],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "complete -o nosort -F _packprep_completion packprep",
        "best_fit balanced",
    ]


@pytest.mark.parametrize(
    ("shell", "place", "answers"),
    [
        ("zsh", "3", ["plain", "best_fit", "_", "plain", "balanced", "_"]),
        ("fish", "b", ["plain,best_fit", "plain,balanced"]),
    ],
)
def test_zsh_and_fish_complete_strategies_too(shell: str, place: str, answers: list[str]) -> None:
    assert f"_PACKPREP_COMPLETE={shell}_complete" in packprep(_PACKPREP_COMPLETE=f"{shell}_source")
    asked = {"COMP_WORDS": "packprep build --strategy b", "COMP_CWORD": place}
    assert packprep(_PACKPREP_COMPLETE=f"{shell}_complete", **asked).splitlines() == answers
