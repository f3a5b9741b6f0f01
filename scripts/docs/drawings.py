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
    """The five stages, and what lies between them."""
    stages = (
        ("read", "sources", "units of text"),
        ("tokenize", "units", "token files"),
        ("plan", "lengths only", "packs"),
        ("write", "packs", "shards"),
        ("sign off", "shards, account", "manifest"),
    )
    parts: list[str] = []
    for number, (name, before, after) in enumerate(stages):
        left = 10 + number * 150
        parts += box(left, 30, 120, 74, number % 4)
        parts += text(left + 60, 54, name, bold=True)
        parts += text(left + 60, 74, f"in: {before}", size=11)
        parts += text(left + 60, 92, f"out: {after}", size=11)
        if number:
            parts += arrow(left - 28, 67, left - 3)
    parts += text(370, 130, "OUT.incomplete until the manifest is written, then OUT", size=12)
    return svg(750, 145, parts)


def pack() -> str:
    """A pack of 16 tokens with three segments."""
    lengths, size, left = (6, 5, 5), 40, 110
    parts = [
        *text(left - 12, 45, "tokens", anchor="end"),
        *text(left - 12, 85, "positions", anchor="end"),
    ]
    start = 0
    for number, length in enumerate(lengths):
        for place in range(length):
            x = left + (start + place) * size
            symbol = "B" if not place else "E" if place == length - 1 else "·"
            parts += box(x, 25, size - 3, 30, number, round_=3)
            parts += text(x + size / 2 - 1, 45, symbol)
            parts += text(x + size / 2 - 1, 85, str(place), size=12)
        middle = left + (start + length / 2) * size
        parts += text(middle, 15, f"segment {number}", size=12)
        start += length
    parts += text(left - 20, 122, "cu_seqlens", anchor="end")
    for end in (0, 6, 11, 16):
        x = left + end * size - 2
        parts.append(f"<path d='M{x} 60V105' stroke='{LINE}' stroke-dasharray='3 3'/>")
        parts += text(x, 122, str(end), size=12)
    parts += text(
        left + 8 * size, 148, "B: BOS, E: EOS. Attention stays within a segment.", size=12
    )
    return svg(left + 16 * size + 20, 160, parts)


def windows() -> str:
    """Sources, their units, and the windows that the units make."""
    parts = [
        *text(80, 40, "sources", anchor="end"),
        *text(80, 95, "units", anchor="end"),
        *text(80, 150, "windows", anchor="end"),
    ]
    left = 100
    for number, (name, units) in enumerate((("a.jsonl", 5), ("b.jsonl.gz", 3), ("c.parquet", 4))):
        width = units * 50
        parts += box(left, 20, width - 6, 34, number)
        parts += text(left + width / 2 - 3, 42, name, size=12)
        for unit in range(units):
            parts += box(left + unit * 50, 75, 44, 30, number, round_=3)
        left += width
    for window in range(3):
        x = 100 + window * 200
        parts += box(x, 130, 194, 34, 3)
        parts += text(x + 97, 152, f"window {window}: planned by itself", size=12)
    return svg(715, 180, parts)


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


def arrow(x: float, y: float, end: float) -> list[str]:
    return [
        f"<path d='M{x:g} {y:g}H{end - 5:g}' stroke='{LINE}' stroke-width='1.5'/>",
        f"<path d='M{end:g} {y:g}l-8 -4v8z' fill='{LINE}'/>",
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
