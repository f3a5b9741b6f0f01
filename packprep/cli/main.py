"""The command line: one module per command, imported when it is used.

Exit codes: 0 done; 1 a check failed; 2 wrong usage or bad input; 3 stopped, can be resumed; 130
after Ctrl-C.
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
    "tokenize": "Tokenize text into a store, to pack it in many ways.",
    "pack": "Pack the tokens of a store into shards.",
    "plan": "Compare pack lengths, strategies and overflow; write no shards.",
    "report": "Write a report of an output: one web page.",
    "stats": "Show the contents of outputs, or the progress of a build.",
    "equate": "Translate a recipe of an unpacked run into one for packs.",
    "check": "Fail CI when the numbers of a build get worse.",
    "verify": "Check every file, invariant and document of an output.",
    "show": "Print a pack as text, or the rows in it; find a row.",
    "spike": "Name the documents of losses that are out of line.",
    "merge": "Merge outputs, or rewrite one: shard size, names, tokens.",
    "export": "Write an output in the format of another trainer.",
    "push": "Push an output to the Hugging Face hub.",
    "store": "List, verify or clean a store of tokens (--keep-tokens).",
    "sample": "Write small real data to try packprep on.",
    "env": "Print versions and settings for a bug report.",
}
"""Each command with its line in `packprep --help`, in the order of use."""
_ELSEWHERE = {
    "convert": "export",
    "inspect": "show",
    "prepare": "build",
    "preprocess": "build",
    "upload": "push",
    "validate": "verify",
}
"""Words for a command in other tools, and the command."""
GONE_COMMANDS = {
    "card": "packprep push OUT NAME --dry-run prints the card",
    "compare": "packprep stats A B shows outputs side by side",
    "materialize": "packprep merge OUT -o NEW --materialize shards writes the shards of an index",
    "rename": "packprep merge OUT -o OUT --names NAMES --overwrite renames the columns",
    "reshard": "packprep merge OUT -o NEW --shard-size SIZE cuts the shards again",
    "status": "packprep stats OUT shows the progress of an unfinished build",
    "trace": "packprep show OUT --rows lists the rows of a pack, --find ROW the packs of a row",
    "warm": "the first build compiles what it needs; build a sample when you make an image",
}
"""Command of earlier versions -> what serves instead."""


def module_of(command: str) -> str:
    """Dotted name of the module of a command."""
    return f"packprep.cli.commands.{command}"


class _Commands(click.Group):
    """Group of commands that are imported when they run, so that help stays fast."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            if not context.resilient_parsing and not name.startswith("-"):
                from packprep.support.errors import nearest

                if now := GONE_COMMANDS.get(name):
                    raise click.UsageError(f"{name} is gone: {now}", context)
                here = _ELSEWHERE.get(name)
                end = f"; did you mean {here!r}?" if here else nearest(name, COMMANDS)
                raise click.UsageError(f"No such command {name!r}{end}", context)
            return None
        command: click.Command = importlib.import_module(module_of(name)).command
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
    """Pack text datasets into training shards once, with an exact account of every token.

    \b
    Example:
      packprep build docs/*.jsonl -o packed --tokenizer tokenizer.json
      packprep stats packed
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Entry point. An expected error is one sentence on standard error, with no traceback."""
    keys: set[str] = set()  # options of a YAML file, which sentences spell as keys
    try:
        status = cli.main(prog_name="packprep", standalone_mode=False, obj=keys)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _stop(stopped(), 130)
    except click.ClickException as error:
        _stop(f"{_usage(error)} see {_path(error)} --help", 2)
    except ValueError as error:
        from packprep.schemas.errors import FormatError
        from packprep.support.errors import ConfigError, PackprepError, StoppedError

        if not isinstance(error, (PackprepError, FormatError)):
            raise
        typed = isinstance(error, ConfigError) and error.as_typed(keys.__contains__)
        _stop(typed or str(error), 3 if isinstance(error, StoppedError) else 2)
    except OSError as error:
        _stop(_system_message(error), 3)
    sys.exit(status if isinstance(status, int) else 0)


def _system_message(error: OSError) -> str:
    """Sentence for an error of the operating system.

    Some libraries use several lines and name no file.
    """
    reason = " ".join(str(error.strerror or error).split())
    return (
        f"{error.filename or 'the output'}: {reason}; finished work is kept, so run the same "
        "command to resume"
    )


def _path(error: click.ClickException) -> str:
    """The command that was used wrongly, which click does not always name."""
    context = getattr(error, "ctx", None)
    if context is not None:
        return str(context.command_path)
    return " ".join(["packprep", *(name for name in sys.argv[1:2] if name in COMMANDS)])


def _usage(error: click.ClickException) -> str:
    """Message of click as the beginning of a sentence; suggests an option for an unknown one."""
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        from packprep.config.grammar.spellings import gone, option_here
        from packprep.config.verbs import other_verb

        verb = str(error.ctx.command.name) if error.ctx else ""
        if other := other_verb(error.option_name.lstrip("-").replace("-", "_"), verb):
            return f"{error.option_name} is an option of packprep {other};"
        if answer := gone(error.option_name):
            return f"{answer};"
        option = option_here(error.option_name)
        if option and error.ctx and option in (each.name for each in error.ctx.command.params):
            flag = "SOURCE" if option == "sources" else "--" + option.replace("_", "-")
            return f"{error.option_name} is called {flag} here;"
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        message = f"No such option {error.option_name!r}; did you mean {error.possibilities[0]!r}?"
    return message[:1].lower() + (
        message[1:] if message.endswith("?") else message[1:].rstrip(".") + ";"
    )


def _stop(sentence: str, code: int) -> None:
    click.echo(f"packprep: {redacted(sentence)}", err=True)
    sys.exit(code)
