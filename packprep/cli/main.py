"""The command line: parses arguments, prints text, and returns an exit code.

0 done; 1 a gate or verification failed; 2 wrong usage or bad input; 3 stopped, run again; 130
Ctrl-C.
"""

import errno
import importlib
import os
import signal
import sys
from typing import Any

import click

from ..schemas.files import FormatError, StoreError
from ..support.errors import ConfigError, PackprepError, StoppedError, Stopping, redacted

COMMANDS = {
    "build": "Tokenize and pack sources into shards that load_from_disk opens.",
    "tokenize": "Tokenize sources into a store.",
    "pack": "Pack the tokens of a store.",
    "plan": "Compare lengths, strategies and overflow before a build.",
    "show": "Print packs as text with their rows, or a document.",
    "report": "Show the numbers of outputs, stores and builds, or a page.",
    "check": "Fail CI when the numbers of a build get worse.",
    "verify": "Check that an output is sound.",
    "export": "Write an output for another trainer.",
    "sample": "Write small data to try packprep on.",
}
"""Commands with their first lines; a module of this name has the click command `command`."""

_MAKE_ROOM = "finished work is kept: make room, and run the same command again"
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENOMEM)


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> Any:
        if name not in COMMANDS:
            return None
        return importlib.import_module(f".{name}", __package__).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=lambda c, p, v: _versions(c, v),
    help="Print the versions that a bug report needs.",
)
def cli() -> None:
    """Turn text and token ids into packed training sequences, once, offline.

    \b
    Pretraining          packprep build docs/*.jsonl.gz -o packed --tokenizer gpt2
    Chats for TRL        packprep build chats.jsonl -o packed --tokenizer NAME
                           --messages messages --columns hf
    Trainers with YAML   packprep export packed --to axolotl -o rows
    A loop of your own   from packprep.loaders import PackedLoader
    Lists in memory      from packprep.loaders import pack_sequences
    """


def _versions(context: click.Context, asked: bool) -> None:
    if asked:
        from ..run.job import versions

        for name, version in versions().items():
            click.echo(f"{name} {version}")
        context.exit()


def main() -> None:
    """Run the command line, and exit with its code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        code = cli.main(prog_name="packprep", standalone_mode=False) or 0
        sys.stdout.flush()
    except Stopping as stop:
        print("stopped; run the same command again to resume", file=sys.stderr, flush=True)
        os._exit(stop.code)  # threads may work: what they have not finished is done again
    except _ERRORS as error:
        sys.exit(_code_of(error))
    sys.exit(code)


_ERRORS = (
    click.exceptions.Exit,
    click.ClickException,
    ValueError,
    OSError,
    StoreError,
    MemoryError,
)


def _code_of(error: Exception) -> int:
    """Exit code of an error, whose sentence is printed. Raises those that are defects."""
    code = 2
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.ClickException():
            error.show()
            return code
        case BrokenPipeError():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        case ConfigError():
            sentence = error.flags
        case PackprepError() | FormatError():
            sentence, code = str(error), 3 if isinstance(error, StoppedError) else 2
        case StoreError():
            sentence, code = str(error), 3 if error.again else 2
        case OSError() if error.errno in _DISK:
            sentence, code = f"{error.filename or 'the disk'}: {error.strerror}; {_MAKE_ROOM}", 3
        case OSError() if error.filename:
            sentence = f"{error.filename}: {error.strerror}; choose a place that can be written"
        case MemoryError():
            sentence, code = "memory is used up; give less max_memory or fewer --num-proc", 3
        case _:
            raise error
    print(f"error: {redacted(sentence)}", file=sys.stderr)
    return code


def _stop(number: int, frame: Any) -> None:
    raise Stopping(130 if number == signal.SIGINT else 3)
