"""The help of a command that has the options of a build: `-h` is short, `--help-all` has all.

Both list EVERY_BUILD above the other options, which follow by stage.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar

import click

from packprep.config.build_config import BuildConfig
from packprep.config.stages import STAGES, Command

EVERY_BUILD = ("sources", "output", "tokenizer")  # what every build has
_FIELDS = {field.name: field for field in dataclasses.fields(BuildConfig)}
_STAGE = {field.name: stage for stage in STAGES for field in dataclasses.fields(stage)}
_ONLY_IN_ALL = ("json",)  # of the options that are not fields
_ALL = f"{__name__}.all"  # key of a context whose help shows every option
_NAMES_WIDTH = 36


class StagedHelp(click.Command):
    """A command whose `-h` shows what most builds need, each with the beginning of its help.

    words: help of options that this command has other words for, by name.
    """

    words: ClassVar[Mapping[str, str]] = {}

    def get_params(self, context: click.Context) -> list[click.Parameter]:
        show_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help=f"Show these options, or all {sum(not _is_hidden(each) for each in self.params)}.",
        )
        return [*super().get_params(context), show_all]

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            str(parameter.name): record
            for parameter in self.get_params(context)
            if (record := _record(parameter, context)) is not None
        }
        for title, names in by_stage(str(self.name), records).items():
            formatter.write(f"\n{title}\n")
            with formatter.indentation():
                formatter.write_dl([records[name] for name in names], col_max=_NAMES_WIDTH)


def by_stage(command: str, options: Iterable[str]) -> dict[str, list[str]]:
    """The options of a command below their headings, without headings that have none."""
    first = f"Every {command}"
    parts: dict[str, list[str]] = {title: [] for title in (first, *map(title_of, STAGES))}
    for name in options:
        parts[first if name in EVERY_BUILD else title_of(_STAGE.get(name, Command))].append(name)
    parts[first].sort(key=EVERY_BUILD.index)
    return {title: names for title, names in parts.items() if names}


def _is_hidden(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Option) and parameter.hidden


def title_of(stage: type) -> str:
    """The heading of a stage: its name, and what it decides."""
    decides = str(stage.__doc__).removeprefix("Decides ").removesuffix(".")
    return f"{stage.__name__}: {decides}"


def _record(parameter: click.Parameter, context: click.Context) -> tuple[str, str] | None:
    """Names and help of an option; None where this page does not show it."""
    name, everything = str(parameter.name), _ALL in context.meta
    field = _FIELDS.get(name)
    words = getattr(context.command, "words", {}).get(name)
    if name == "sources":
        text = words or _FIELDS[name].metadata["help"]
        return parameter.make_metavar(context).partition("|")[0], text
    if "--help" in parameter.opts or _is_hidden(parameter):
        return None  # --help is in the row of --help-all
    if not everything and not (field.metadata["common"] if field else name not in _ONLY_IN_ALL):
        return None
    names, text = parameter.get_help_record(context) or ("", "")
    text = words or text
    if name == "help_all":
        names = f"-h, {names}"
    return names, text if everything else _beginning(text)


def _beginning(text: str) -> str:
    """The first part of a help text, and the default."""
    text, default, value = text.partition("  [default: ")
    return re.split(r"[.;] ", text)[0].rstrip(".") + "." + default + value


def _show_all(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help())
        context.exit()
