"""The command line. Options of `build` are the fields of BuildConfig: nothing is said twice.

Exit codes: 0 done; 1 a check failed; 2 wrong usage or bad input; 3 stopped but can go on; 130 after Ctrl-C.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import click

from packprep import __version__
from packprep.config import DEFAULT_FILE, BuildConfig, from_yaml
from packprep.errors import ConfigError

_SHORT = {"output": "-o"}


class _Grouped(click.Command):
    """A command whose options are listed under headings."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            if (record := parameter.get_help_record(context)) is not None:
                groups.setdefault(getattr(parameter, "group", "Other"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=34)


class _Option(click.Option):
    """An option with a heading. Its default is None, so that what was typed can be told from what was not."""

    def __init__(self, names: Sequence[str], group: str, **settings: Any) -> None:
        super().__init__(names, **settings)
        self.group = group


def _option(field: "dataclasses.Field[Any]") -> _Option:
    flag = "--" + field.name.replace("_", "-")
    settings: dict[str, Any] = {"help": _help(field)}
    names = [*([_SHORT[field.name]] if field.name in _SHORT else []), flag, field.name]
    if field.type is bool:
        names[-2] = f"{flag}/--no-{flag[2:]}"
    elif get_origin(field.type) is Literal:
        settings["metavar"] = "|".join(get_args(field.type))
    elif field.metadata["size"]:
        settings["metavar"] = "SIZE"
    else:
        kinds = get_args(field.type) if isinstance(field.type, UnionType) else (field.type,)
        settings["type"] = next((kind for kind in (int, float) if kind in kinds), str)
    return _Option(names, field.metadata["group"], default=None, **settings)


def _help(field: "dataclasses.Field[Any]") -> str:
    default, text = field.default, str(field.metadata["help"])
    if field.name == "num_proc":
        return f"{text}  [default: all cores]"
    if isinstance(default, tuple):
        default = ",".join(default)
    shown = default not in (None, "", False) and default != 0
    return text + (f"  [default: {default}]" if shown else "")


def _build_options(command: click.Command) -> click.Command:
    fields = [field for field in dataclasses.fields(BuildConfig) if field.name != "sources"]
    headings = ("Sources", "Tokenizer", "Packing", "Order", "Output")
    for field in sorted(fields, key=lambda field: headings.index(field.metadata["group"])):
        command.params.append(_option(field))
        if field.name == "order":
            command.params.append(
                _Option(
                    ["--shuffle/--no-shuffle"],
                    "Order",
                    default=None,
                    help="Short for --order shuffle and --order input.",
                )
            )
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="packprep %(version)s")
def cli() -> None:
    """Turn text datasets into packed training shards, once, with an exact account of every token."""


@click.command(
    "build",
    cls=_Grouped,
    epilog="Exit codes: 0 done, 2 wrong usage or bad input, 3 stopped but resumable, 130 after Ctrl-C.",
)
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    help=f"YAML file of options; the command line wins.  [default: {DEFAULT_FILE}, without SOURCE]",
)
@click.option("--dry-run", is_flag=True, help="Print the resolved options and what the output would be; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress and no table.")
def build_command(
    sources: tuple[str, ...], config: Path | None, dry_run: bool, as_json: bool, quiet: bool, **options: Any
) -> None:
    """Tokenize and pack SOURCE... into shards that datasets.load_from_disk opens.

    SOURCE is a file (.jsonl .json .csv .tsv .txt .parquet .arrow, plain, .gz or .zst), a glob, a directory,
    - for JSON lines on standard input, or the name of a dataset on the hub.

    \b
    Example:
      packprep build docs/*.jsonl.gz -o packed --tokenizer tokenizer.json --max-length 8192
    """
    settings = resolve_options(sources, config, options)
    # Rust threads of the tokenizer follow num_proc; they are counted before it is first imported.
    os.environ.setdefault("RAYON_NUM_THREADS", str(settings.num_proc))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    from packprep.pipeline import build, read_report
    from packprep.progress import Console, Silent
    from packprep.report import table

    if dry_run:
        from packprep.estimate import estimate

        _show(estimate(settings), as_json)
        return
    with Console() as console:
        build(settings, progress=Silent() if quiet else console)
    report = read_report(Path(settings.output))
    if as_json:
        click.echo(json.dumps(report, indent=2))
    elif not quiet:
        print_table(settings.output, table(report))


cli.add_command(_build_options(build_command))


def resolve_options(sources: Sequence[str], config: Path | None, options: dict[str, Any]) -> BuildConfig:
    """The command line over the YAML file over the defaults."""
    if config is None and not sources and Path(DEFAULT_FILE).exists():
        config = Path(DEFAULT_FILE)
    settings = from_yaml(config) if config is not None else {}
    typed = {key: value for key, value in options.items() if value is not None}
    if (shuffle := typed.pop("shuffle", None)) is not None:
        if "order" in typed:
            raise ConfigError("--order and --shuffle say the same thing twice; give one of them")
        typed["order"] = "shuffle" if shuffle else "input"
    if "columns" in typed:
        typed["columns"] = tuple(name.strip() for name in typed["columns"].split(",") if name.strip())
    if sources:
        typed["sources"] = tuple(sources)
    return BuildConfig(**(settings | typed))


def print_table(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Two columns on standard output: coloured in a terminal, plain when piped."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, show_header=False, box=None, title_justify="left", pad_edge=False)
    shown.add_column(style="bold" if sys.stdout.isatty() else "", no_wrap=True)
    shown.add_column(overflow="fold")
    for row in rows:
        shown.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 120, highlight=False, markup=False).print(shown)


def _show(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result, indent=2))
        return
    for part, values in result.items():
        print_table(part, [(key, str(value)) for key, value in values.items()])


def main() -> None:
    """Entry point: an error that packprep raises on purpose is one sentence on standard error."""
    try:
        status = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        _stop("stopped; run the same command to start again", 130)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except KeyboardInterrupt:
        _stop("stopped; run the same command to start again", 130)
    except ValueError as error:
        from packprep.errors import PackprepError
        from packprep.schemas import FormatError

        if not isinstance(error, (PackprepError, FormatError)):
            raise
        _stop(str(error), 2)
    except OSError as error:
        if error.errno is None:
            raise
        _stop(f"{error.filename or 'the output'}: {error.strerror}", 3)
    sys.exit(status if isinstance(status, int) else 0)


def _stop(sentence: str, code: int) -> None:
    click.echo(f"packprep: {sentence}", err=True)
    sys.exit(code)
