"""The command line: one module per command, `command_NAME`, imported when it is used.

Exit codes: 0 done; 1 a check failed; 2 wrong usage or bad input; 3 stopped but can go on; 130 after
Ctrl-C.
"""

import importlib
import sys
from typing import TYPE_CHECKING

import click

from packprep.cli.printing import stopped
from packprep.support.redact import redacted
from packprep.support.version import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "build": "Tokenize and pack text into shards.",
    "plan": "Compare lengths, strategies and overflow; write no shard.",
    "status": "How far a running or stopped build is.",
    "report": "Show an output as a web page, or as plots.",
    "stats": "Show what an output holds, and its steps per epoch.",
    "compare": "Two outputs or reports side by side.",
    "check": "Fail CI when a build's numbers got worse.",
    "verify": "Check an output: every file, invariant and document.",
    "show": "Print a pack as text, its documents apart.",
    "trace": "Which rows are in a pack, and which packs hold a row.",
    "merge": "Put outputs together into one.",
    "reshard": "Cut an output into shards of another size.",
    "sample": "Write small real data to try packprep on.",
    "env": "Versions and settings for a bug report.",
}
"""Each command with its line in `packprep --help`, in the order of a user's work."""


class _Commands(click.Group):
    """Commands that are imported when they are run.

    So help and every other command stay fast.
    """

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            if not context.resilient_parsing and not name.startswith("-"):
                from packprep.support.errors import nearest

                raise click.UsageError(
                    f"No such command {name!r}{nearest(name, COMMANDS)}", context
                )
            return None
        command: click.Command = importlib.import_module(f"packprep.cli.commands.{name}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, context: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=line)
            for name, line in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, context, incomplete)


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="packprep %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Turn text datasets into packed training shards once, with an exact account of every token."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Entry point: an error that packprep raises on purpose is one sentence on standard error."""
    try:
        status = cli.main(prog_name="packprep", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _stop(stopped(), 130)
    except click.ClickException as error:
        _stop(f"{_usage(error)} see {_path(error)} --help", 2)
    except ValueError as error:
        from packprep.schemas.errors import FormatError
        from packprep.support.errors import PackprepError, StoppedError

        if not isinstance(error, (PackprepError, FormatError)):
            raise
        _stop(str(error), 3 if isinstance(error, StoppedError) else 2)
    except OSError as error:
        _stop(_of_system(error), 3)
    sys.exit(status if isinstance(status, int) else 0)


def _of_system(error: OSError) -> str:
    """The sentence for what the system refused.

    Some libraries say it in many words and name no file.
    """
    reason = " ".join(str(error.strerror or error).split())
    return (
        f"{error.filename or 'the output'}: {reason}; what was done is kept, so run the same "
        "command to go on"
    )


def _path(error: click.ClickException) -> str:
    """The command that was used wrongly; click does not always say."""
    context = getattr(error, "ctx", None)
    if context is not None:
        return str(context.command_path)
    return " ".join(["packprep", *(name for name in sys.argv[1:2] if name in COMMANDS)])


def _usage(error: click.ClickException) -> str:
    """The message of click as the beginning of a sentence.

    With the nearest option where the one typed is none.
    """
    message = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        message = f"No such option {error.option_name!r}; did you mean {error.possibilities[0]!r}?"
    return message[:1].lower() + (
        message[1:] if message.endswith("?") else message[1:].rstrip(".") + ";"
    )


def _stop(sentence: str, code: int) -> None:
    click.echo(f"packprep: {redacted(sentence)}", err=True)
    sys.exit(code)
