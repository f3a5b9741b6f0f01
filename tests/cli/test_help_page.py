"""The short and the long help of the commands that have the options of a build."""

import re

import click
import pytest

from packprep.cli.help_page import title_of
from packprep.cli.main import cli
from packprep.config.stages import STAGES
from tests.helpers.command import run

FIRST, TITLES = ["--output", "--tokenizer"], [title_of(stage) for stage in STAGES]


def options_on(page: str) -> list[str]:
    """Options in the order of the page, each by its longest name."""
    rows = re.findall(r"^  (?:(-\w), )?(--[\w\[\]-]+)", page, re.MULTILINE)
    return [name.replace("[no-]", "") for _, name in rows]


@pytest.mark.parametrize("name", ["build", "plan"])
def test_the_short_help_fits_a_screen_or_two_and_the_long_one_has_every_option(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    names = [each.opts[-1] for each in command.params if not getattr(each, "hidden", True)]
    short, long = (run(name, flag).out for flag in ("-h", "--help-all"))
    assert sorted(options_on(long)) == sorted([*names, "--help-all"])
    assert set(options_on(short)) < set(options_on(long))
    for page in (short, long):
        assert max(map(len, page.splitlines())) <= 80
        every = page.split(f"Every {name}\n")[1].split("\n\n")[0]
        assert every.startswith("  SOURCE...")
        assert options_on(every) == [flag for flag in FIRST if flag in names]
        heads = [line for line in page.splitlines() if line in TITLES]
        assert heads == [title for title in TITLES if title in heads]
    assert heads == TITLES  # of the long one
    assert len(options_on(short)) <= 30
    assert len(short.splitlines()) <= 75
