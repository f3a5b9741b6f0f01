"""Options of commands from the fields of the stages, and the help page by groups."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_args

import click

from ..config.grammar import flag
from ..config.options import BuildConfig
from ..config.yaml_file import HINTS, from_yaml
from ..support.errors import ConfigError
from ..support.progress import Console, Silent


def _options(names: Sequence[str]) -> list[click.Option]:
    return [_option(spec) for spec in fields(BuildConfig) if spec.name in names]


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
        metavar="|".join(choices) or facts["metavar"] or None,
        multiple=spec.name == "carry",
        help=words,
    )


def all_but(*names: str) -> list[str]:
    """Options on the command line without some."""
    return [
        spec.name
        for spec in fields(BuildConfig)
        if not spec.metadata.get("yaml") and spec.name not in ("sources", *names)
    ]


class Command(click.Command):
    """A command whose options are fields, with its help by groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        by_name = {spec.name: spec.metadata.get("group") for spec in fields(BuildConfig)}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                group = by_name.get(str(param.name)) or "Running"
                groups.setdefault(group, []).append(record)
        order = list(dict.fromkeys([*filter(None, by_name.values()), *groups]))
        for group in order:
            if group in groups:
                with formatter.section(group):
                    formatter.write_dl(groups[group])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name.lstrip("-").replace("-", "_")
            if name in HINTS:
                raise ConfigError(
                    f"there is no {error.option_name}; it is called {flag(HINTS[name])} here"
                ) from None
            raise


def command(name: str, function: Callable[..., Any], names: Sequence[str], words: str) -> Command:
    """A command with options of fields, a config file, and sources as arguments."""
    params: list[click.Parameter] = [
        click.Argument(["sources"], nargs=-1, metavar="SOURCE..."),
        *_options(names),
        click.Option(
            ["-c", "--config", "config_file"], metavar="FILE", help="YAML: all of these, and more."
        ),
        click.Option(["-q", "--quiet", "quiet"], is_flag=True, help="Print errors only."),
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


def progress_of(quiet: bool) -> Console | Silent:
    """Where a command reports its progress."""
    return Silent() if quiet else Console()
