"""Write the outputs of documentation pages again: what their commands print now.

A page is run like in its test, in an empty folder. Outputs that differ are replaced; those that
hold a line `...` are only reported. `@@` as an output is always replaced, so write it below a new
command.

\b
$ python scripts/docs/refresh.py docs/quickstart.md
docs/quickstart.md: 2 outputs replaced
"""

import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.docs.blocks import check_page, load  # noqa: E402
from tests.docs.outputs import masked  # noqa: E402
from tests.docs.sessions import Session  # noqa: E402

NEW = "@@"  # an output that is not known yet


@dataclass
class Refresh(Session):
    """A session that collects outputs in place of failing.

    replaced: (line of the command or fence, lines of the page, printed lines).
    """

    replaced: list[tuple[int, list[str], list[str]]] = field(default_factory=list)

    def _compare(self, where: str, shown: Sequence[str], printed: Sequence[str]) -> None:
        new = NEW in shown
        problem = self._difference(shown, printed)
        if not problem:
            return
        if "..." in shown and not new:
            click.echo(f"{where}: write this output by hand\n{problem}")
            return
        line = int(where.split(":")[1])
        kept = [text for text in printed if not text.strip() or masked([text])]  # no progress
        self.replaced.append((line, _trimmed(shown), _trimmed(kept)))


def _trimmed(lines: Sequence[str]) -> list[str]:
    """The lines without blank ones at either end, without spaces at their ends."""
    return "\n".join(line.rstrip() for line in lines).strip("\n").split("\n")


@click.command(help=__doc__)
@click.argument("pages", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(pages: tuple[Path, ...]) -> None:
    failed = False
    with tempfile.TemporaryDirectory() as sample:
        for page in pages:
            outputs, errors = run(page.resolve(), Path(sample) / "sample")
            for error in errors:
                click.echo(error)
            failed |= bool(errors)
            replace(page, outputs)
            click.echo(f"{page}: {len(outputs)} outputs replaced")
    sys.exit(failed)


def run(page: Path, sample: Path) -> tuple[list[tuple[int, list[str], list[str]]], list[str]]:
    """Outputs of a page to replace, and its errors.

    sample: where all pages keep the sample data.
    """
    blocks = load(page)
    for block in blocks:
        if NEW in block.text.splitlines() and block.language == "console":
            block.attributes.pop("output", None)  # also where it varies
    check_page(blocks)
    errors = []
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory() as cache,
        closing(Refresh(Path(folder), Path(cache), sample, fixed=True)) as session,
    ):
        for block in blocks:
            try:
                session.run(block)
            except AssertionError as error:
                errors.append(str(error))
    return session.replaced, errors


def replace(page: Path, outputs: Sequence[tuple[int, list[str], list[str]]]) -> None:
    """Put printed lines where the page shows others; from the end, so that line numbers hold."""
    lines = page.read_text().splitlines()
    for line, shown, printed in sorted(outputs, reverse=True):
        at = next(
            number
            for number in range(line, len(lines))
            if lines[number : number + len(shown)] == shown
        )
        lines[at : at + len(shown)] = printed
    page.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
