"""Plots of docs/choosing.md, from the data that `packprep sample` writes. Needs matplotlib.

\b
$ python scripts/docs/choosing.py
docs/images/choosing-utilization.svg
docs/images/choosing-cuts.svg
docs/images/choosing-bias.svg
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

IMAGES = Path(__file__).parents[2] / "docs" / "images"
COLOURS = {
    "best_fit": "#1f6feb",
    "optimal": "#8250df",
    "stream": "#1a7f37",
    "greedy": "#bc4c00",
    "wrapped": "#57606a",
}
CHATS = ["--messages-column", "messages"]


@click.command(help=__doc__)
@click.option(
    "--images", type=click.Path(path_type=Path), default=IMAGES, show_default="docs/images"
)
def main(images: Path) -> None:
    images.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update(
        {"svg.hashsalt": "packprep", "svg.fonttype": "none", "font.family": "sans-serif"}
    )
    with tempfile.TemporaryDirectory() as folder:
        run("sample", folder)
        lengths = [256, 512, 1024, 2048, 4096]
        chats = plans(Path(folder), "chats.jsonl", lengths, CHATS)
        code = plans(Path(folder), "code.jsonl", [1024, 2048, 4096, 8192, 16384, 32768], [])
    for name, figure in (
        ("utilization", utilization(chats)),
        ("cuts", cuts(code)),
        ("bias", bias([plan for plan in chats if plan["max_length"] == 1024])),
    ):
        path = images / f"choosing-{name}.svg"
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
        plt.close(figure)
        print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "packprep", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def plans(
    folder: Path, file: str, lengths: Iterable[int], options: Sequence[str]
) -> list[dict[str, Any]]:
    """Plans of every strategy at each length."""
    names = [str(folder / file), "--tokenizer", str(folder / "tokenizer"), *options]
    sizes = ",".join(map(str, lengths))
    printed = run("plan", *names, "--max-length", sizes, "--strategy", "all", "--json", "-q")
    found: list[dict[str, Any]] = json.loads(printed)["plans"]
    return found


def axes(title: str, lengths: Sequence[int] = ()) -> tuple[Any, Any]:
    figure, axis = plt.subplots(figsize=(7, 3.4))
    axis.set_title(title, loc="left", fontsize=11)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
    if lengths:
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axis.minorticks_off()
        axis.set_xlabel("max_length, tokens")
    return figure, axis


def lines(axis: Any, found: list[dict[str, Any]], names: Sequence[str], key: str) -> None:
    for name in names:
        points = [
            (plan["max_length"], 100 * plan[key]) for plan in found if plan["strategy"] == name
        ]
        label = f"{name}, first_fit, knapsack" if name == "best_fit" else name
        axis.plot(*zip(*points, strict=True), marker="o", color=COLOURS[name], label=label)
    axis.legend(frameon=False, fontsize=9)


def utilization(found: list[dict[str, Any]]) -> Any:
    """Share of the places in packs that hold a token, by length and strategy."""
    lengths = sorted({plan["max_length"] for plan in found})
    figure, axis = axes("Conversations: utilization, %", lengths)
    lines(axis, found, ["best_fit", "optimal", "stream", "greedy"], "utilization")
    return figure


def cuts(found: list[dict[str, Any]]) -> Any:
    """Number of documents that are cut, by length, of wrapped and of every other strategy."""
    lengths = sorted({plan["max_length"] for plan in found})
    figure, axis = axes("Source files: documents that are cut", lengths)
    for name, label in (("wrapped", "wrapped"), ("best_fit", "every other strategy")):
        chosen = [plan for plan in found if plan["strategy"] == name]
        axis.plot(
            [plan["max_length"] for plan in chosen],
            [plan["cut"] for plan in chosen],
            marker="o",
            color=COLOURS[name],
            label=label,
        )
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize=9)
    return figure


def bias(found: list[dict[str, Any]]) -> Any:
    """Bias of packs towards equal lengths, for each strategy at one length."""
    figure, axis = axes("Conversations at 1,024: bias (0: lengths meet at random)")
    names = [plan["strategy"] for plan in found]
    axis.bar(names, [plan["bias"] for plan in found], color="#1f6feb", width=0.6)
    axis.axhline(0, color="black", linewidth=0.8)
    return figure


if __name__ == "__main__":
    main()
