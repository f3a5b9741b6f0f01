"""`packprep build`. Its options are generated from the fields of BuildConfig."""

import dataclasses
import os
import re
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from packprep.cli.completion import of_names, of_paths
from packprep.cli.help_page import StagedHelp
from packprep.cli.options import Decorated, value_option
from packprep.cli.output_type import output_at
from packprep.cli.printing import print_json, print_report, print_table, stopped
from packprep.config.aliases import ALIASES, Alias, over, respelled
from packprep.config.build_config import BuildConfig
from packprep.config.grammar.amounts import count_of
from packprep.config.grammar.option import COLUMN_CHOICE
from packprep.config.grammar.rules import flag as flag_of
from packprep.config.grammar.spellings import say, silent
from packprep.config.yaml_file import DEFAULT_FILE, from_yaml
from packprep.engines.third_party import share_machine, tell_libraries
from packprep.support.errors import ConfigError

if TYPE_CHECKING:
    from packprep.execute.work import Work
    from packprep.schemas.manifest import Manifest

EXIT_CODES = (
    "Exit codes: 0 done; 2 wrong usage or bad input; 3 stopped or disk full, run the same command "
    "to resume; 130 after Ctrl-C."
)
_SHORT = {"output": "-o"}
_RUN = ("dry_run", "json", "quiet")  # options of the command, not of BuildConfig


class Grouped(StagedHelp):
    """A command with options of a build, one of which needs no value."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(context, list(_with_values(args)))


def _with_values(arguments: Sequence[str]) -> Iterator[str]:
    """Add a value to `--share-prefixes` without a number, which may precede a source."""
    switches = {"--share-prefixes": "true", "--no-share-prefixes": "false"}
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        has_value = argument == "--share-prefixes" and count_of(following) is not None
        value = None if has_value else switches.get(argument)
        yield argument if value is None else f"--share-prefixes={value}"


class _Option(click.Option):
    """An option whose default is None, which means that it was not typed."""

    def __init__(self, names: Sequence[str], **settings: Any) -> None:
        super().__init__(names, default=None, **settings)

    def get_help_record(self, context: click.Context) -> tuple[str, str] | None:
        if self.secondary_opts and not self.hidden:
            return f"--[no-]{self.opts[-1][2:]}", self.help or ""
        return super().get_help_record(context)


def _make_option(field: "dataclasses.Field[Any]") -> _Option:
    """The command-line option of a field of BuildConfig."""
    flag = flag_of(field.name)
    names = [*([_SHORT[field.name]] if field.name in _SHORT else []), flag, field.name]
    text, metavar = str(field.metadata["help"]), str(field.metadata["metavar"])
    settings: dict[str, Any] = {}
    if field.type is bool:
        names[-2] = f"{flag}/--no-{flag[2:]}"
    elif choices := choices_of(field):
        parts = metavar if field.metadata["setting"] else "NAME"
        metavar = "|".join(choices)
        settings["shell_complete"] = of_names(choices)
        if len(metavar) > 15 or parts != "NAME":
            first, *rest = re.split(r"(?<=[.;]) ", text, maxsplit=1)
            metavar, end = parts, first[-1]
            text = " ".join([f"{first[:-1]}: {', '.join(choices)}{end}", *rest])
    else:
        settings["type"] = str  # values.py converts numbers too, from any source of options
    if field.name == "carry":
        settings["multiple"] = True
    if field.name == "columns":
        settings["shell_complete"] = of_names(COLUMN_CHOICE, several=True)
    if metavar in ("DIR", "FILE", "PATH|NAME"):
        settings["shell_complete"] = of_paths("dir" if metavar == "DIR" else "file")
    if field.type is not bool:
        settings["metavar"] = metavar
    return _Option(
        names,
        help=text + (f"  [default: {default}]" if (default := default_of(field)) else ""),
        **settings,
    )


def choices_of(field: "dataclasses.Field[Any]") -> tuple[str, ...]:
    """The names that an option may have; empty for other values."""
    if setting := field.metadata["setting"]:
        return tuple(setting.words())
    return get_args(field.type) if get_origin(field.type) is Literal else ()


def _make_alias(earlier: str, alias: Alias) -> _Option:
    """The hidden command-line option for an option of earlier versions."""
    flag = flag_of(earlier)
    if not alias.metavar:
        return _Option([f"{flag}/--no-{flag[2:]}", earlier], hidden=True)
    return _Option([flag, earlier], hidden=True, type=str, metavar=alias.metavar)


def default_of(field: "dataclasses.Field[Any]") -> str:
    """The default as a user would type it; empty for none and for a switch that is off."""
    default = ",".join(field.default) if isinstance(field.default, tuple) else field.default
    default = {
        "num_proc": "all that this process may use",
        "max_memory": "half of what this process may use",
        "share_prefixes": None,
    }.get(field.name, default)
    return "" if default is None or default is False else str(default)


def build_options(*left_out: str) -> Callable[[click.Command], click.Command]:
    """Decorator that adds the options of a build to a command, except those left out."""

    def add(command: click.Command) -> click.Command:
        for field in dataclasses.fields(BuildConfig):
            if field.name not in left_out:
                command.params.append(_make_option(field))
        for earlier, alias in ALIASES.items():
            if earlier not in left_out:
                command.params.append(_make_alias(earlier, alias))
        return command

    return add


def verb_options(names: Collection[str]) -> Callable[[click.Command], click.Command]:
    """Decorator that adds those of the options of a build that a part of it has."""
    known = [spec.name for spec in dataclasses.fields(BuildConfig)]
    return build_options("sources", *ALIASES, *(name for name in known if name not in names))


def run_options(
    source: str, report: str, estimate: str | None = None
) -> Callable[[Decorated], Decorated]:
    """Decorator that adds sources, -c, and the options in `_RUN` to a command.

    source: name of one of them. report: what --json prints. estimate: what --dry-run shows; None
    for a command without it.
    """
    dry_run = f"Show all options and {estimate}; write nothing."
    decorators: list[Callable[[Any], Any]] = [
        click.argument("sources", nargs=-1, metavar=f"{source}...", shell_complete=of_paths()),
        value_option(
            "FILE",
            "-c",
            "--config",
            help="YAML file with these options and `sources` as keys; options typed here win.  "
            f"[default: {DEFAULT_FILE}, if no {source} is given]",
        ),
        *([_switch("--dry-run", help=dry_run)] if estimate else []),
        _switch("--json", help=f"Print {report} as JSON."),
        _switch("-q", "--quiet", help="Print no progress and no table."),
    ]

    def add(function: Decorated) -> Decorated:
        for decorate in reversed(decorators):  # a help page begins with the last one
            function = decorate(function)
        return function

    return add


def _switch(*names: str, help: str) -> Callable[[Any], Any]:  # noqa: A002 - named as click's
    """A switch whose default is None, which means that it was not typed."""
    return click.option(*names, is_flag=True, default=None, help=help)


@build_options("sources")
@click.command(
    "build",
    cls=Grouped,
    short_help="Tokenize and pack text into shards.",
    epilog=EXIT_CODES,
)
@run_options("SOURCE", "the report", estimate="an estimate of the output")
def command(sources: tuple[str, ...], config: Path | None, **typed: Any) -> None:
    """Tokenize and pack SOURCE... into shards that datasets.load_from_disk opens.

    SOURCE is a file (.jsonl .json .csv .tsv .txt .parquet .arrow; also .gz and .zst), a glob, a
    directory, a dataset on the hub (hub:ORG/SET, and what you need of :NAME@REVISION#SPLIT after
    it), or - for JSON lines on standard input. Files of token ids (.bin with .idx, .npy, .ds) need
    no text.

    A stopped build keeps its finished work: run the same command to resume.

    \b
    Example:
      packprep build docs/*.jsonl.gz -o packed --tokenizer gpt2 --max-length 8192
    """
    settings, run = resolve_options(sources, config, typed)
    tell_libraries()
    share_machine(settings.num_proc, settings.tokenizing)

    def work() -> "Work[Manifest]":
        from packprep.execute.pipeline import of_build

        return of_build(settings)

    if run["dry_run"]:
        forecast(work, run)
    elif perform(work, run):
        print_report(output_at(settings.output), as_json=run["json"], quiet=run["quiet"])


def forecast(work: "Callable[[], Work[Any]]", run: Mapping[str, bool]) -> None:
    """Print all options of a command and an estimate of its output."""
    from packprep.packing.kernels.compiled import compiling
    from packprep.preview.estimate import estimate
    from packprep.support.progress import open_progress

    with open_progress("a sample", quiet=run["quiet"]) as progress, compiling(progress.say):
        tables = estimate(work())
    if not run["json"]:
        tables.pop("contents", None)  # for packprep equate
        if line := tables["prediction"].pop("not_read", ""):
            click.echo(line, err=True)
    show_tables(tables, run["json"])


def perform(work: "Callable[[], Work[Any]]", run: Mapping[str, bool]) -> bool:
    """Do a command, or the share of one task of it; False after a share, which prints its counts.

    work: makes it. run: the options in `_RUN`.
    """
    from packprep.support.progress import open_progress

    with open_progress(quiet=run["quiet"]) as progress, _stop_at_once(progress.close):
        # Imported here because it takes a second, in which Ctrl-C must work too.
        from packprep.execute import pipeline

        made = work()
        if not made.config.is_task:
            pipeline.run(made, progress)
            return True
        share = pipeline.run_share(made, progress)
        progress.close()
    if not run["quiet"] or run["json"]:
        show_tables({"share": share}, run["json"])
    return False


def resolve_options(
    sources: Sequence[str], config: Path | None, typed: Mapping[str, object]
) -> tuple[BuildConfig, dict[str, bool]]:
    """Config of a build, and the options in `_RUN`.

    The command line wins over the YAML file, and that over the defaults.
    """
    options, run = merged_options(sources, config, typed)
    return BuildConfig(**options), run


def merged_options(
    sources: Sequence[str],
    config: Path | None,
    typed: Mapping[str, object],
    several: Sequence[str] = (),
) -> tuple[dict[str, Any], dict[str, bool]]:
    """Options of a build with unchecked values, and those in `_RUN`; the command line wins.

    several: options that have several values, for which earlier ones are kept.
    """
    if config is None and not sources:
        if not Path(DEFAULT_FILE).exists():
            raise ConfigError(
                f"no source is given and there is no {DEFAULT_FILE} here; see {_here()} --help"
            )
        config = Path(DEFAULT_FILE)
    typed = {key: value for key, value in typed.items() if value not in (None, ())}
    options = {}
    if config is not None:
        names = {spec.name for spec in dataclasses.fields(BuildConfig)}
        _spell_as_keys({*names, *ALIASES, *_RUN} - typed.keys())
        options = from_yaml(config, _RUN)
    options = over(options, typed)
    run = {key: options.pop(key, False) for key in _RUN}
    for key, value in run.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{flag_of(key)} is {value!r}, expected true or false")
    if sources:
        options["sources"] = tuple(sources)
    line = silent if run["quiet"] else say
    options = respelled(
        options, line, lambda name: flag_of(name) if name in typed else name, several
    )
    return options, run


def _here() -> str:
    """The command that runs."""
    context = click.get_current_context(silent=True)
    return context.command_path if context else "packprep build"


def _spell_as_keys(options: set[str]) -> None:
    """Have errors name options as keys of a YAML file rather than as flags, see `main`."""
    context = click.get_current_context(silent=True)
    if context is not None and isinstance(context.obj, set):
        context.obj |= options


@contextmanager
def _stop_at_once(close: Callable[[], None]) -> Iterator[None]:
    """End the process at once on Ctrl-C and SIGTERM.

    A thread in the middle of a unit cannot be stopped, only abandoned. Finished work is in the
    staging directory with its receipts, so the same command resumes. close: restores the terminal.
    """

    def stop(number: int, _: FrameType | None) -> None:
        close()
        with suppress(OSError):  # nobody may read it
            os.write(2, f"packprep: {stopped()}\n".encode())
        os._exit(130 if number == signal.SIGINT else 3)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_tables(result: Mapping[str, Mapping[str, object]], as_json: bool) -> None:
    """Print tables by title, or all of them as JSON."""
    if as_json:
        print_json(result)
        return
    for title, values in result.items():
        print_table(title, [(key, _shown(value)) for key, value in values.items()])


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    return f"{value:,}" if type(value) is int else str(value)
