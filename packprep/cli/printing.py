"""Printing for commands: the closing table, findings, and tables with a head."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TextIO

import click

from ..schemas.manifest import Output

if TYPE_CHECKING:
    from ..look.findings import Finding


def print_output(output: Output, share: float | None = None) -> None:
    """Print where an output is and what became of every token. share: of the text in a dry run."""
    from ..look.closing import table  # a quiet build needs none of it
    from ..look.findings import facts_of, findings

    facts, name = facts_of(output), str(output.files)
    report, rows = facts.report, list(table(facts.report, facts.tokenizer))
    if share is None:
        stores = {store["path"] for store in output.manifest.run.get("stores", {}).values()}
        rows += [("tokens stay in", path) for path in sorted(stores)]
        if stores:
            rows.append(("read by", "packprep.loaders; load_from_disk opens the plan only"))
    else:
        name = f"dry run of the first 16 MB of each source, {share:.1%} of the text"
        tokens, packs = report["tokens"]["tokens_packed"] / share, report["packs"] / share
        size = report["bytes"] / share / 1e6
        whole = f"about {tokens:,.0f} tokens in {packs:,.0f} packs, {size:,.1f} MB"
        rows.append(("all of the text", whole))
    print_table(name, rows)
    print_findings(findings(facts), sys.stderr)


def print_table(name: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a name, and rows of caption and text."""
    width = max(len(caption) for caption, _ in rows)
    print(f"\n{name}")
    for caption, text in rows:
        print(f"  {caption:<{width}}  {text}")


def print_grid(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    """Print rows under their heads. left: columns from the first one that hold words."""
    from ..look.compare import grid

    for number, line in enumerate(grid([heads, *rows], slice(left, None))):
        click.secho(line, bold=number == 0)


def print_findings(made: "Iterable[Finding]", file: TextIO) -> None:
    """Print what is wrong or can be better."""
    print_sentences((each.sentence for each in made if each.state != "good"), file)


def print_sentences(sentences: Iterable[str], file: TextIO | None = None) -> None:
    """Print sentences, in lines as wide as the terminal."""
    columns = shutil.get_terminal_size().columns
    for sentence in sentences:
        lines = textwrap.wrap(
            sentence,
            columns,
            subsequent_indent="  ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        print("\n".join(lines), file=file)
