"""Drawings of docs/how-it-works.md.

\b
$ python scripts/docs/drawings.py
docs/images/flow.svg
docs/images/pack.svg
docs/images/windows.svg
"""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import click

IMAGES = Path(__file__).parents[2] / "docs" / "images"
WIDTH = 366  # pixels: a phone shows it without making it smaller
INK, LINE = "#1f2328", "#57606a"
COLOURS = ("#ddf4ff", "#dafbe1", "#fff8c5", "#fbefff")
EDGES = ("#0969da", "#1a7f37", "#9a6700", "#8250df")
FONT = "font-family='system-ui, sans-serif'"


@click.command(help=__doc__)
@click.option(
    "--images", type=click.Path(path_type=Path), default=IMAGES, show_default="docs/images"
)
def main(images: Path) -> None:
    images.mkdir(parents=True, exist_ok=True)
    for name, drawing in (("flow", flow()), ("pack", pack()), ("windows", windows())):
        path = images / f"{name}.svg"
        path.write_text(drawing)
        print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def flow() -> str:
    """The five stages, one below the other, and what lies between them."""
    stages = ("read", "tokenize", "plan", "write", "sign off")
    between = (
        "units of text, 64 MB each",
        "token files",
        "packs: the segments of each",
        "shards, each with a receipt",
        "account, report, manifest",
    )
    parts = [*text(75, 22, "sources", size=13), *arrow_down(75, 28, 42)]
    for number, (name, after) in enumerate(zip(stages, between, strict=True)):
        top = 44 + number * 62
        parts += box(20, top, 110, 38, number % 4)
        parts += text(75, top + 24, name, bold=True)
        parts += arrow_down(75, top + 38, top + 60)
        parts += text(145, top + 54, after, size=13, anchor="start")
    parts += text(75, 372, "OUT", bold=True)
    parts += text(145, 372, "complete, by one rename", size=13, anchor="start")
    return svg(WIDTH, 386, parts)


def pack() -> str:
    """A pack of 16 tokens with three segments."""
    lengths, size, left = (6, 5, 5), 21, 14
    parts = text(left, 18, "tokens of one pack (B: BOS, E: EOS)", size=13, anchor="start")
    parts += text(left + 5, 88, "position_ids", size=13, anchor="start")
    parts += text(left + 5, 142, "cu_seqlens", size=13, anchor="start")
    start = 0
    for number, length in enumerate(lengths):
        for place in range(length):
            x = left + (start + place) * size
            symbol = "B" if not place else "E" if place == length - 1 else "·"
            parts += box(x, 44, size - 2, 24, number, round_=3)
            parts += text(x + size / 2 - 1, 61, symbol, size=13)
            parts += text(x + size / 2 - 1, 108, str(place), size=12)
        parts += text(left + (start + length / 2) * size, 38, f"segment {number}", size=12)
        start += length
    for end in (0, 6, 11, 16):
        x = left + end * size - 1
        parts.append(f"<path d='M{x} 44V146' stroke='{LINE}' stroke-dasharray='3 3'/>")
        parts += text(x, 162, str(end), size=12)
    return svg(WIDTH, 174, parts)


def windows() -> str:
    """Sources, their units, and the windows that the units make."""
    left, size = 12, 29
    parts = text(left, 20, "sources", size=13, anchor="start")
    parts += text(left, 88, "units of text", size=13, anchor="start")
    parts += text(left, 150, "windows, each planned by itself", size=13, anchor="start")
    x = left
    for number, (name, units) in enumerate((("a.jsonl", 5), ("b.gz", 3), ("c.parquet", 4))):
        parts += box(x, 28, units * size - 5, 34, number)
        parts += text(x + units * size / 2 - 3, 50, name, size=12)
        for unit in range(units):
            parts += box(x + unit * size, 96, size - 5, 26, number, round_=3)
        x += units * size
    for window in range(3):
        parts += box(left + window * 4 * size, 158, 4 * size - 5, 32, 3)
        parts += text(left + (window * 4 + 2) * size - 3, 179, f"window {window}", size=12)
    return svg(WIDTH, 202, parts)


def box(x: float, y: float, width: float, height: float, colour: int, round_: int = 6) -> list[str]:
    return [
        f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='{round_}' "
        f"fill='{COLOURS[colour]}' stroke='{EDGES[colour]}'/>"
    ]


def text(
    x: float, y: float, words: str, *, size: int = 14, bold: bool = False, anchor: str = "middle"
) -> list[str]:
    weight = " font-weight='bold'" if bold else ""
    return [
        f"<text x='{x:g}' y='{y:g}' font-size='{size}'{weight} text-anchor='{anchor}' "
        f"fill='{INK}'>{escape(words)}</text>"
    ]


def arrow_down(x: float, y: float, end: float) -> list[str]:
    return [
        f"<path d='M{x:g} {y:g}V{end - 5:g}' stroke='{LINE}' stroke-width='1.5'/>",
        f"<path d='M{x:g} {end:g}l-4 -8h8z' fill='{LINE}'/>",
    ]


def svg(width: float, height: float, parts: Sequence[str] | Iterable[str]) -> str:
    """A picture on white, so that it can be read on a dark page too."""
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' "
            f"width='{width:g}' height='{height:g}' {FONT}>",
            f"<rect width='{width:g}' height='{height:g}' rx='6' fill='#ffffff'/>",
            *parts,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    main()
