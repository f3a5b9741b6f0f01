"""Tables that commands print.

In a terminal they have colour and are never wider than the terminal. A table with too many columns
is printed as several, one below the other, which repeat the first columns. If that takes more than
three, each row becomes a separate block.

In a pipe or a file they are plain, and every row is one line with all columns, so that grep, awk
and diff can rely on it.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from packprep.schemas.manifest import Output

_GAP = 2  # spaces between columns
_MAX_TABLES = 3
HOW_TO_TRAIN = (
    "to train: from packprep.loaders import guard, to_hf; then SFTTrainer(guard(model)) with "
    "padding_free=True, max_length=None, or Trainer(guard(model), data_collator=to_hf) with "
    "remove_unused_columns=False; other settings may join documents, and guard stops them"
)
_NO_WIDTH = 1 << 20  # width of a pipe: no row is as long


def stopped() -> str:
    """Message of a stopped command: how to resume."""
    return f"stopped; to resume: {shlex.join(['packprep', *sys.argv[1:]])}"


def print_json(value: Any) -> None:
    """Print a value as JSON for a script, indented for a reader."""
    click.echo(json.dumps(value, indent=2))


def print_report(output: "Output", *, as_json: bool, quiet: bool) -> None:
    """Print report.json of a new output: as JSON, as a table, or not at all if `quiet`.

    A note on what is not read goes to standard error. A warning for text that a chat template
    leaves out does, too, `quiet` or not.
    """
    from packprep.inspect.report_file import read_report
    from packprep.reports.closing import left_out_sentence, not_read_sentence, table
    from packprep.schemas.manifest import read_manifest

    manifest = read_manifest(output)
    report = read_report(output, manifest)
    if as_json:
        print_json(report)
    elif not quiet:
        rows = table(report)
        run = manifest.run
        rows[-1:-1] = [*_ends(run.get("ends")), *_engine(run.get("engine"))]  # before the digest
        print_table(str(output), rows)
        if manifest.names == "hf":
            print_sentence(HOW_TO_TRAIN)
    if (unread := not_read_sentence(report)) and not quiet:
        click.echo(unread, err=True)
    if sentence := left_out_sentence(report):
        click.echo(sentence, err=True)


def _ends(ends: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Row of the closing table for BOS and EOS; none for an output of an older packprep."""
    if ends is None:
        return []
    tokens = [ends["bos"], ends["eos"]]
    if tokens == [None, None]:
        return [("BOS, EOS", "none")]
    by = f", where the {ends['by']} writes them" if ends["by"] else ""
    return [("BOS, EOS", ", ".join(map(_token, tokens)) + by)]


def _token(token: Mapping[str, Any] | None) -> str:
    if token is None:
        return "none"
    text = token["text"] if token["text"].isprintable() else repr(token["text"])
    return text if token["id"] is None else f"{text} (id {token['id']})"


def _engine(gate: Mapping[str, object] | None) -> list[tuple[str, str]]:
    """Row of the closing table for the engine; none where no text was tokenized."""
    if gate is None:
        return []
    count = gate.get("guard_characters", 0)
    characters = "1 certain character" if count == 1 else f"one of {count:,} certain characters"
    guarded = f"; tokenizers for documents with {characters}" if count else ""
    return [("engine", f"{gate['engine']}{guarded}")]


def print_table(title: str, rows: Sequence[tuple[str, "str | Text"]]) -> None:
    """Print names and values under a title.

    In a terminal a value that does not fit beside the longest name begins further left, so that a
    digest stays on one line and can be copied. A value that is still too long wraps.
    """
    from rich.text import Text

    console = _console()
    _print(console, Text(title, "italic"))
    _print_pairs(console, rows)


def _print_pairs(console: "Console", rows: Sequence[tuple[str, "str | Text"]]) -> None:
    from rich.table import Table
    from rich.text import Text

    pairs = [
        (Text(name, "bold"), value if isinstance(value, Text) else Text(value))
        for name, value in rows
    ]
    widest = max((name.cell_len for name, _ in pairs), default=0)
    for name, value in pairs:
        free = console.width - _GAP - value.cell_len
        table = Table.grid(padding=(0, _GAP))
        table.add_column(no_wrap=True, width=widest if free < name.cell_len else min(widest, free))
        table.add_column(overflow="fold")
        table.add_row(name, value)
        _print(console, table)


def print_sentence(sentence: str, style: str = "") -> None:
    """Print one line; a narrower terminal wraps it between words."""
    from rich.text import Text

    _print(_console(), Text(sentence, style))


def print_columns(rows: Sequence[Mapping[str, object]], *, keys: int = 1) -> None:
    """Print rows with equal keys as a table with heads.

    Numbers are right-aligned, None is a dash. keys: see `print_grid`.
    """
    if not rows:
        return
    names = list(rows[0])
    texts = [
        column
        for column, name in enumerate(names)
        if not all(isinstance(row[name], int | None) for row in rows)
    ]
    cells = [[_cell(row[name]) for name in names] for row in rows]
    print_grid("", [name.replace("_", " ") for name in names], cells, keys=keys, left=texts)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if type(value) is int else str(value)


def print_grid(
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    keys: int = 1,
    left: Sequence[int] = (0,),
    colours: Sequence[str | None] = (),
) -> None:
    """Print rows of several columns under their heads.

    title: a line above; none if empty. keys: number of first columns that identify a row; these are
    repeated where a terminal is too narrow. left: columns that are left-aligned, all others are
    right-aligned. colours: of each row, in a terminal only, so that a row must also say in words
    what its colour means.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    console = _console()
    if title:
        _print(console, Text(title, "italic"))
    widths = [max(cell_len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    styles = [colour or "" for colour in colours] or [""] * len(rows)
    parts = _parts(widths, keys, console.width)
    if len(parts) > _MAX_TABLES:
        for row, style in zip(rows, styles, strict=True):
            _print(console, Text(" ".join(filter(None, row[:keys])), f"bold {style}".rstrip()))
            _print_pairs(
                console,
                [
                    (f"  {head}", cell)
                    for head, cell in zip(heads[keys:], row[keys:], strict=True)
                    if cell
                ],
            )
        return
    for number, part in enumerate(parts):
        table = Table(box=None, padding=(0, _GAP // 2), pad_edge=False, header_style="bold")
        for column in part:
            table.add_column(
                heads[column], justify="left" if column in left else "right", overflow="fold"
            )
        for row, style in zip(rows, styles, strict=True):
            table.add_row(*(row[column] for column in part), style=style)
        if number:
            _print(console, "")
        _print(console, table)


def _parts(widths: Sequence[int], keys: int, width: int) -> list[list[int]]:
    """Columns of each table, so that no table is wider than `width` where that is possible.

    The first `keys` columns are in all tables.

    Example: widths [4, 6, 6, 6], keys 1, width 20 -> [[0, 1, 2], [0, 3]]
    """
    first = list(range(keys))
    parts = [first]
    for column in range(keys, len(widths)):
        part = [*parts[-1], column]
        if parts[-1] == first or sum(widths[each] + _GAP for each in part) - _GAP <= width:
            parts[-1] = part
        else:
            parts.append([*first, column])
    return parts


def _console() -> "Console":
    """Standard output for rich, without markup; only a terminal has a width and colour."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    width, height = shutil.get_terminal_size() if terminal else (_NO_WIDTH, 0)
    return Console(
        force_terminal=terminal,
        width=width,
        height=height,
        markup=False,
        highlight=False,
        emoji=False,
    )


def _print(console: "Console", content: "RenderableType") -> None:
    """Print lines without the trailing spaces of rich."""
    from rich.segment import Segment, Segments

    for line in console.render_lines(content, pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
        console.print(Segments([*line, Segment.line()]), end="")
