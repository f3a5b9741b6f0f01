"""Builds the wheel and the sdist of a source folder with the setuptools of a Python.

\b
python scripts/checks/distributions.py SOURCE FOLDER --python env/bin/python

setuptools writes an sdist with the time of day and users of this machine, so it is written again:
entries sorted by name, without owners, and dated SOURCE_DATE_EPOCH.
"""

import gzip
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import click

_BUILD = "from setuptools import build_meta; build_meta.build_{}({!r})"


@click.command(help=__doc__)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--python", default=sys.executable, help="A Python that has setuptools.")
def main(source: Path, folder: Path, python: str) -> None:
    for kind in ("sdist", "wheel"):
        subprocess.run(
            [python, "-W", "ignore", "-c", _BUILD.format(kind, str(folder.resolve()))],
            cwd=source,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    [sdist] = folder.glob("*.tar.gz")
    sdist.write_bytes(reproducible(sdist.read_bytes(), int(os.environ["SOURCE_DATE_EPOCH"])))


def reproducible(sdist: bytes, date: int) -> bytes:
    """The same files as a tar.gz that depends on their names, contents and `date` only."""
    packed = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as old,
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=date, filename="") as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as new,
    ):
        for entry in sorted(old.getmembers(), key=lambda member: member.name):
            plain = tarfile.TarInfo(entry.name)
            plain.size, plain.type, plain.linkname = entry.size, entry.type, entry.linkname
            plain.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            plain.mtime = date
            new.addfile(plain, old.extractfile(entry) if entry.isfile() else None)
    return packed.getvalue()


if __name__ == "__main__":
    main()
