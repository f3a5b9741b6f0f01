"""`packprep build` with each engine, on text of which the reference encodes some characters.

\b
python scripts/bench/guarded.py [--mb 250] [--text FILE]... [--tokenizer DIR] [--engine NAME]...

Writes JSON lines to a temporary folder: the text repeated, with the word "the" changed in every
copy. Each build runs in a new process, and counts whole: imports, loading of the tokenizer, the
comparison of engines. Fast engines take turns, --runs times each; hf runs once, at last. Fails if
two engines give other bytes. Default tokenizer: a small one with the pre-tokenizer of gpt-oss.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import tables
from common import copies, lines, measure, text_options

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.helpers import stand_ins

ENGINES = ("fastokens", "gigatoken", "hf")
MB = 1_000_000


@click.command(help=__doc__)
@click.option("--mb", default=250.0, show_default=True, help="MB of text.")
@text_options
@click.option(
    "--engine",
    "engines",
    multiple=True,
    default=ENGINES,
    type=click.Choice(ENGINES),
    help="May be repeated; default: all.",
)
@click.option("--runs", default=3, show_default=True, help="Builds with each fast engine.")
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
def main(
    mb: float,
    texts: Sequence[Path],
    tokenizer: Path | None,
    engines: Sequence[str],
    runs: int,
    markdown: bool,
) -> None:
    if not texts or tokenizer is None:
        data = stand_ins.data()
        texts = texts or sorted((data / "text").glob("*s.jsonl.gz"))  # books, eips, peps
        tokenizer = tokenizer or data / "tokenizers" / "o200k"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = folder / "text.jsonl"
        corpus = "".join(line for path in texts for line in lines(path)).encode()
        with source.open("wb") as file:
            file.writelines(copies(corpus, 0, int(mb * MB)))
        turns = [name for _ in range(runs) for name in engines if name != "hf"]
        built: dict[str, list[tuple[dict[str, float], dict[str, Any]]]] = {}
        for name in turns + ["hf"] * ("hf" in engines):
            out = folder / f"{name}-{len(built.get(name, []))}"
            built.setdefault(name, []).append(build(source, tokenizer, name, out))
        size = source.stat().st_size / MB
    show(built, size, markdown)


def build(
    source: Path, tokenizer: Path, engine: str, out: Path
) -> tuple[dict[str, float], dict[str, Any]]:
    """Seconds and memory of a build in a new process, and its manifest."""
    options = ["-o", str(out), "--tokenizer", str(tokenizer), "--engine", engine, "--quiet"]
    ends = ["--bos", "none", "--eos", "none", "--columns", "", "--verify-engine", "0"]
    used, _ = measure(["-m", "packprep", "build", str(source), *options, *ends])
    return used, json.loads((out / "manifest.json").read_bytes())


def show(
    built: dict[str, list[tuple[dict[str, float], dict[str, Any]]]], size: float, markdown: bool
) -> None:
    medians = {
        name: {key: statistics.median(used[key] for used, _ in runs) for key in ("wall", "cpu")}
        for name, runs in built.items()
    }
    rows = []
    for name, used in medians.items():
        gate = built[name][0][1]["run"]["engine"]
        faster = [f"{medians['hf'][key] / used[key]:.1f}" for key in used] if "hf" in built else []
        rows.append(
            (
                f"{name} {gate['version']} ({len(built[name])})",
                f"{gate.get('guard_characters', 0):,}",
                f"{used['wall']:.1f}",
                f"{used['cpu']:.1f}",
                f"{size / used['wall']:.1f}",
                f"{size / used['cpu']:.1f}",
                *(faster or ["", ""]),
            )
        )
    columns = ("engine", "guard", "wall s", "CPU s", "MB/s", "MB/CPU-s", "x hf, wall", "x hf, CPU")
    click.echo(f"{size:,.0f} MB of text")
    tables.show(columns, rows, markdown)
    outputs = [manifest["data"] for runs in built.values() for _, manifest in runs]
    if any(output != outputs[0] for output in outputs):
        raise click.ClickException("the engines give other bytes")
    click.echo(f"the same bytes in all {len(outputs)} builds")


if __name__ == "__main__":
    main()
