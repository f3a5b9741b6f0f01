"""CPU seconds of `packprep build` with a fast engine and with the reference, on the same text.

    python scripts/bench/guarded.py TOKENIZER TEXT [--engine fastokens]

TOKENIZER: a directory or tokenizer.json, such as one with the pre-tokenizer of gpt-oss. TEXT: JSON
lines, at least 100 MB for a figure to be quoted. Both builds run after one another in new
processes, and their bytes are compared.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click


def build(tokenizer: str, text: str, engine: str, out: Path) -> tuple[float, dict[str, object]]:
    """CPU seconds of a build in a new process, and its manifest."""
    options = ["-o", str(out), "--tokenizer", tokenizer, "--engine", engine, "--columns", ""]
    ends = ["--bos", "none", "--eos", "none", "--verify-engine", "0", "--max-length", "2048"]
    process = subprocess.Popen(
        [sys.executable, "-m", "packprep", "build", text, *options, *ends, "--quiet"]
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the build with {engine} failed")
    manifest = json.loads((out / "manifest.json").read_bytes())
    return usage.ru_utime + usage.ru_stime, manifest


@click.command(help=__doc__)
@click.argument("tokenizer")
@click.argument("text", type=click.Path(exists=True))
@click.option("--engine", default="fastokens", show_default=True)
def main(tokenizer: str, text: str, engine: str) -> None:
    megabytes = Path(text).stat().st_size / 1e6
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        built = {name: build(tokenizer, text, name, out / name) for name in (engine, "hf")}
    for name, (seconds, manifest) in built.items():
        gate = manifest["run"]["engine"]  # type: ignore[index]
        click.echo(f"{name:10} {seconds:8.1f} CPU s {megabytes / seconds:8.1f} MB/CPU s  {gate}")
    (fast, of_fast), (slow, of_reference) = built.values()
    same = of_fast["data"] == of_reference["data"]
    click.echo(f"{slow / fast:.1f} x the reference; the same bytes: {'yes' if same else 'NO'}")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
