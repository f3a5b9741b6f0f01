r"""Writes generated pages and tables of the documentation, and report.schema.json's figures.

\b
python scripts/docs/reference.py            writes them
python scripts/docs/reference.py --check    exits 1 where a page is not what it would write
"""

import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, get_args

import click
import errors

from packprep.cli.commands.build import build_options, choices_of, default_of
from packprep.cli.help_page import by_stage
from packprep.cli.main import COMMANDS, cli
from packprep.config.build_config import BuildConfig
from packprep.config.grammar.known_columns import markdown_table
from packprep.packing.figures import FIGURES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
SCHEMA = ROOT / "schemas" / "report.schema.json"
WITH_COLUMNS = (ROOT / "docs" / "chat.md", ROOT / "docs" / "token-ids.md")
EXAMPLES = Path(__file__).parent / "cli_examples.md"
GENERATED = "<!-- Written by scripts/docs/reference.py. Change the code, not this page. -->\n"
WIDTH = 80

CLI = f"""# Command line

{GENERATED}
Every command prints its help with `--help` or `-h`. That of `build` and `plan` has what most builds
need; `--help-all` has all options, as the page [Options](options.md) does. The examples on this
page run from top to bottom in an empty folder, with the data that this command writes:

```console
$ packprep sample data
```

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | `verify`, `check`: something is wrong |
| 2 | wrong usage or bad input: one sentence names the option, or file and row |
| 3 | stopped by the system, such as a full disk; the same command resumes |
| 130 | stopped by Ctrl-C; the same command resumes |

Results go to standard output. Progress and errors go to standard error.

Commands, options and choices (`--strategy <TAB>`) complete in the shell with one line in its
start-up file:

```text
eval "$(_PACKPREP_COMPLETE=bash_source packprep)"   # ~/.bashrc, bash 4.4 or newer
eval "$(_PACKPREP_COMPLETE=zsh_source packprep)"    # ~/.zshrc, after compinit
_PACKPREP_COMPLETE=fish_source packprep | source    # ~/.config/fish/config.fish
```
"""

OPTIONS = f"""# Options

{GENERATED}
All options of `packprep build`, by stage: the part of a build that they decide. Below the same
headings `--help-all` lists them, and `-h` those that most builds need. Each is also a key of a YAML
file and an argument of `packprep.BuildConfig`.

- **YAML.** `packprep build -c FILE` reads the options from a file. Without a source on the command
  line, `packprep.yaml` in the working folder is read. `-` and `_` are the same in a key. The
  command line wins over the file. A file may
  [include others and name variables](../quickstart.md#keep-options-in-a-file).
- **Sizes** are bytes, or text such as `500MB` and `4GB`.
- **Counts** are numbers, or text: `2k` is 2,000, `2Ki` is 2,048, `1.5B` is 1,500,000,000.
  **Shares** are numbers such as `0.01`, or text such as `1%`.
- **Lists** are a YAML list, or text with commas. On the command line, they are text with commas;
  `--carry` is given once per column.
- **Switches** are `true` or `false` in YAML, `--append` or `--no-append` on the command line.
- **Own value per source** marks an option that a table in `sources` may set for one source alone,
  see [Mixes](../mixes.md).

Options of Running and Command never change the bytes of the shards.
"""


def pages() -> dict[Path, str]:
    """The text of each generated page."""
    return {
        FOLDER / "cli.md": cli_page(),
        FOLDER / "options.md": options_page(),
        FOLDER / "errors.md": errors.page(GENERATED),
        SCHEMA: report_schema(),
        **{page: with_columns(page.read_text()) for page in WITH_COLUMNS},
    }


def with_columns(page: str) -> str:
    """A page with the table of known columns between its two marks."""

    def table(found: re.Match[str]) -> str:
        kinds: Any = found[2].split(", ")
        return f"{found[1]}\n{markdown_table(kinds)}{found[3]}"

    return re.sub(
        r"(<!-- columns: (.*) -->\n).*?(<!-- end of columns -->)", table, page, flags=re.S
    )


def report_schema() -> str:
    """report.schema.json with the rows of FIGURES; all else stays as it is written there."""
    schema = json.loads(SCHEMA.read_text())
    tables = schema["properties"]
    parts = [
        (schema, [row for row in FIGURES if row.is_computed]),
        (tables["epochs"]["items"], [row for row in FIGURES if row.in_epochs]),
        (tables["windows"]["items"], [row for row in FIGURES if row.window is not None]),
    ]
    for part, rows in parts:
        for row in rows:
            words = {"description": row.words} if row.words and part is schema else {}
            part["properties"][row.name] = row.schema | words
            if not row.optional and row.name not in part["required"]:
                part["required"].append(row.name)
    return json.dumps(schema, indent=2) + "\n"


def cli_page() -> str:
    """All commands in the order of `packprep --help`: example, then help."""
    parts = [CLI]
    examples = _examples()
    for name, line in COMMANDS.items():
        parts.append(f"## {name}\n\n{line}\n\n{examples[name]}\n\n```text\n{help_of(name)}\n```\n")
    return "\n".join(parts)


def help_of(name: str) -> str:
    """The help page of a command, as a terminal of WIDTH columns shows it."""
    parent = click.Context(cli, info_name="packprep", terminal_width=WIDTH)
    command = cli.get_command(parent, name)
    assert command is not None
    settings = {**command.context_settings, "help_option_names": ["-h", "--help"]}
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=WIDTH, **settings
    )
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def _examples() -> dict[str, str]:
    """The Markdown of each section of EXAMPLES by its title."""
    sections = re.split(r"^## (\w+)\n", EXAMPLES.read_text(), flags=re.MULTILINE)[1:]
    return {name: text.strip() for name, text in zip(sections[::2], sections[1::2], strict=True)}


def options_page() -> str:
    """Every field of BuildConfig under the headings of `packprep build --help-all`."""
    spellings = {
        parameter.name: parameter for parameter in _flags() if isinstance(parameter, click.Option)
    }
    parts = [OPTIONS]
    options = {spec.name: spec for spec in dataclasses.fields(BuildConfig)}
    for heading, names in by_stage("build", options).items():
        title, _, decides = heading.partition(": ")
        parts.append(f"## {title}\n")
        parts += [f"{decides[0].upper()}{decides[1:]}.\n"] if decides else []
        parts += [_option(options[name], spellings.get(name)) for name in names]
    return "\n".join(parts)


def _flags() -> Iterator[click.Parameter]:
    command = click.Command("build")
    build_options("sources")(command)
    yield from command.params


def _option(spec: "dataclasses.Field[Any]", flag: click.Option | None) -> str:
    """The section of one option."""
    text = spec.metadata["help"]
    default = _default(spec)
    rows = [
        f"- `{_typed(spec, flag)}`; in YAML `{_yaml(spec)}`",
        f"- {_type(spec)}{', ' + default if default else ''}"
        + ("; own value per source" if spec.metadata["per_source"] else ""),
    ]
    return f"### {spec.name}\n\n{_markdown(text)}\n\n" + "\n".join(rows) + "\n"


def _markdown(text: str) -> str:
    """Help text whose special characters Markdown shows as they are."""
    text = re.sub(r"(?<![\w`-])(--[a-z][a-z-]*[a-z])", r"`\1`", text)
    pieces = re.split(r"(`[^`]*`)", text)
    pieces[::2] = [re.sub(r"([\\*_<\[{])", r"\\\1", piece) for piece in pieces[::2]]
    return "".join(pieces)


def _typed(spec: "dataclasses.Field[Any]", flag: click.Option | None) -> str:
    """The option as it is typed."""
    if flag is None:
        return f"{spec.metadata['metavar']}..."
    names = " ".join(f"{name}," for name in flag.opts[:-1]) + (" " if len(flag.opts) > 1 else "")
    if flag.secondary_opts:
        return f"{flag.opts[-1]}, {flag.secondary_opts[-1]}"
    plain = choices_of(spec) and not spec.metadata["setting"]
    value = "|".join(choices_of(spec)) if plain else spec.metadata["metavar"]
    return f"{names}{flag.opts[-1]} {value}"


def _yaml(spec: "dataclasses.Field[Any]") -> str:
    """The option as a line of a YAML file, with its default where it has one."""
    default = default_of(spec)
    if isinstance(spec.default, tuple):
        metavar = spec.metadata["metavar"].removesuffix(",...").partition("[")[0]
        values = ", ".join(spec.default or metavar.split(","))
        return f"{spec.name}: [{values}]"
    if spec.type is bool or spec.name == "share_prefixes":
        return f"{spec.name}: true"
    if spec.name in ("num_proc", "max_memory"):
        return f"{spec.name}: {'16GB' if spec.metadata['metavar'] == 'SIZE' else 8}"
    return f"{spec.name}: {default or spec.metadata['metavar']}"


def _type(spec: "dataclasses.Field[Any]") -> str:
    """The type in words."""
    if spec.metadata["metavar"] == "SIZE":
        return "size"
    if choices := choices_of(spec):
        return "one of " + ", ".join(f"`{choice}`" for choice in choices)
    if isinstance(spec.default, tuple):
        return "list"
    kinds = get_args(spec.type) if isinstance(spec.type, UnionType) else (spec.type,)
    words = {int: "whole number", float: "number", bool: "switch"}
    return next((word for kind, word in words.items() if kind in kinds), "text")


def _default(spec: "dataclasses.Field[Any]") -> str:
    """The default in words; empty where there is none."""
    if spec.name in ("sources", "output", "tokenizer"):
        return (
            "required, unless `input_ids_column` is given"
            if spec.name == "tokenizer"
            else "required"
        )
    if spec.type is bool:
        return "default off"
    default = default_of(spec)
    if spec.name in ("num_proc", "max_memory"):
        return f"default {default}"
    return f"default `{default}`" if default else ""


@click.command(help=__doc__)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 where a page differs.")
def main(check: bool) -> None:
    wrong = [
        path for path, text in pages().items() if not path.exists() or path.read_text() != text
    ]
    for path in wrong:
        click.echo(f"{path.relative_to(ROOT)} {'differs' if check else 'written'}")
        if not check:
            path.write_text(pages()[path])
    sys.exit(1 if check and wrong else 0)


if __name__ == "__main__":
    main()
