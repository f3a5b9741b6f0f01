"""Options of commands from the fields of the stages, and the help page by groups."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_args

import click

from ..config.grammar import count_of, flag, wrong
from ..config.options import GROUPS, BuildConfig
from ..config.yaml_file import HINTS, from_yaml
from ..support.errors import ConfigError
from ..support.progress import Console, Progress, Silent


class Command(click.Command):
    """A command whose help has groups, and which takes each option once."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            param.name: record
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx))
        }
        for group, names in GROUPS.items():
            if rows := [records[name] for name in names if name in records]:
                with formatter.section(group):
                    formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            given = self.make_parser(ctx).parse_args(list(args))[2]
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if name in HINTS:
                raise ConfigError(
                    f"there is no {error.option_name}; it is called {flag(HINTS[name])} here"
                ) from None
            raise
        for param in given:
            if given.count(param) > 1 and not getattr(param, "multiple", False):
                raise ConfigError(f"{flag(str(param.name))} is given twice; give it once")
        return super().parse_args(ctx, args)


def _option(spec: "Field[Any]") -> click.Option:
    """The click option of a field; None if it was not given, so that YAML counts."""
    facts = spec.metadata
    flags = [*([facts["short"]] if "short" in facts else []), f"--{spec.name.replace('_', '-')}"]
    words = facts["help"]
    choices = [each for each in get_args(spec.type) if isinstance(each, str)]
    if spec.type is bool:
        return click.Option([*flags, spec.name], is_flag=True, default=None, help=words)
    if spec.default not in (None, (), "", MISSING) and "[" not in words:
        words += f"  [{spec.default}]"
    return click.Option(
        [*flags, spec.name],
        metavar=facts["metavar"] or "|".join(choices) or None,
        multiple=spec.name == "carry",
        help=words,
    )


def command(name: str, function: Callable[..., Any], names: Sequence[str], words: str) -> Command:
    """A command with sources as arguments and options of these names."""
    params: list[click.Parameter] = [
        click.Argument(["sources"], nargs=-1, metavar="SOURCE..."),
        *[_option(spec) for spec in fields(BuildConfig) if spec.name in names],
        click.Option(
            ["-c", "--config", "config_file"], metavar="FILE", help="YAML: all of these, and more."
        ),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print errors only."),
    ]
    settings = {"max_content_width": 80}
    return Command(name, callback=function, params=params, help=words, context_settings=settings)


def config_of(given: Mapping[str, Any], config_file: str | None) -> BuildConfig:
    """The config of the options that were given, over those of a YAML file."""
    options = from_yaml(Path(config_file)) if config_file else {}
    own = {name: value for name, value in given.items() if value not in (None, ())}
    if "tokenizer" in own and str(own["tokenizer"]).isdecimal():
        own["tokenizer"] = int(own["tokenizer"])
    return BuildConfig(**(options | own))


def amount_of(option: str, text: str | None) -> int | None:
    """The amount of an option. Raises ConfigError for others than whole numbers above 0."""
    if text is not None and not (count_of(text) or 0) >= 1:
        wrong(option, text, "a number of at least 1, such as 512 or 100k")
    return count_of(text)


@contextmanager
def progress_of(quiet: bool) -> Iterator[Progress]:
    """The progress of a command; a live line is removed at its end."""
    if quiet:
        yield Silent()
        return
    console = Console()
    try:
        yield console
    finally:
        console.close()
