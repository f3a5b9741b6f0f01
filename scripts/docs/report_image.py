"""The picture of the report page in README.md: its first screen, of code and prose.

Needs a Chromium (CHROMIUM names it, or one on PATH).

\b
$ python scripts/docs/report_image.py
docs/images/report.png
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.helpers.chromium import find_chromium  # noqa: E402

IMAGE = ROOT / "docs" / "images" / "report.png"


@click.command(help=__doc__)
@click.option("--width", default=1280, show_default=True, help="Pixels.")
@click.option("--height", default=1000, show_default=True, help="Pixels.")
def main(width: int, height: int) -> None:
    browser = find_chromium()
    if browser is None:
        raise click.ClickException("no Chromium is on PATH; install one, or name it in CHROMIUM")
    with tempfile.TemporaryDirectory() as folder:
        _packprep(folder, "sample", "data")
        sources = ["data/code.jsonl", "data/prose.jsonl"]
        options = [
            "--tokenizer",
            "data/tokenizer",
            "--max-length",
            "4096",
            "--min-document-tokens",
            "200",
        ]
        options += ["--overflow", "truncate"]
        _packprep(folder, "build", *sources, "-o", "packed", *options)
        _packprep(folder, "report", "packed", "-o", "report.html")
        _picture(browser, Path(folder), width, height)
    click.echo(IMAGE.relative_to(ROOT))


def _packprep(folder: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "packprep", *arguments]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def _picture(browser: str, folder: Path, width: int, height: int) -> None:
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    flags += ["--hide-scrollbars", "--no-first-run", "--disable-background-networking"]
    flags += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
    IMAGE.parent.mkdir(parents=True, exist_ok=True)
    page = (folder / "report.html").as_uri()
    subprocess.run(
        [browser, *flags, f"--screenshot={IMAGE}", page], check=True, stderr=subprocess.DEVNULL
    )


if __name__ == "__main__":
    main()
