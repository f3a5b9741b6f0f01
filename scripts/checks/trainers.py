"""Check that each adapter's fields keep documents apart in the trainer itself.

\b
    scripts/check_trainers                  the versions in scripts/checks/trainers.json
    scripts/check_trainers --newest         the newest releases instead
    scripts/check_trainers --newest trl     only that package

Installs each trainer into an environment of its own in a temporary folder, above the packages of
this one, and runs the checks of trainer_contracts.py there: three steps of training, whose losses
must be those of the documents alone, and the trainer's own functions on packed fields. Prints a
line for each package and version: ok or BROKEN. Exits 1 if a contract is broken, by a newer release
or here. Takes about ten minutes and 3 GB.

--record writes the versions that were proven to trainers.json; docs/trainers.md names them too.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_suffix(".json")
CONTRACTS = Path(__file__).with_name("trainer_contracts.py")
_PINNED = ("torch", "numpy", "torchdata")  # all environments share these

Row = Mapping[str, Any]


def make_environment(folder: Path, package: str, row: Row, version: str | None) -> Path:
    """Install a trainer above the packages of this environment.

    version: None for the newest. Returns its Python. CalledProcessError if it cannot be installed.
    """
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    base = [path for path in sys.path if path.endswith("site-packages")]
    code = "import site; " + "; ".join(f"site.addsitedir({path!r})" for path in base)
    (site / "base.pth").write_text(code + "\n")
    pins = (ROOT / "scripts" / "constraints.txt").read_text().split()
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pin for pin in pins if pin.split("==")[0] in _PINNED))

    def pip(*arguments: str) -> None:
        command = [str(python), "-m", "pip", *arguments, "--disable-pip-version-check"]
        subprocess.run(command, capture_output=True, text=True, check=True)

    named = package if version is None else f"{package}=={version}"
    upgrade = ["--upgrade"] if version is None else []
    wanted = [named, *row.get("requires", ())]
    if row.get("alone"):  # its requirements conflict, and include much that the checks do not use
        pip("install", "-q", "--no-deps", *upgrade, named)
        wanted = wanted[1:]
    if wanted:
        pip("install", "-q", "-c", str(constraints), *upgrade, *wanted)
    if row.get("without"):
        pip("uninstall", "-q", "-y", *row["without"])
    return python


def run_checks(python: Path, package: str) -> list[dict[str, Any]]:
    """Results of all checks of a package in its environment."""
    variables = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [str(python), "-W", "ignore", str(CONTRACTS), package]
    options: Any = {"cwd": ROOT, "env": os.environ | variables, "capture_output": True}
    ran = subprocess.run(command, **options, text=True, check=False)
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{"check"')]
    results = [json.loads(line) for line in lines]
    if ran.returncode or not results:
        last = (ran.stderr.strip() or "no check ran").splitlines()[-1]
        results.append({"check": f"{package}: all checks", "holds": False, "measured": last})
    return results


def check(package: str, row: Row, version: str | None, *, verbose: bool) -> tuple[bool, str]:
    """Check one trainer and print its lines. Returns True if all holds, and its version."""
    asked = version or "newest"
    with tempfile.TemporaryDirectory() as folder:
        try:
            python = make_environment(Path(folder), package, row, version)
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip() or str(error)).splitlines()[-1]
            click.echo(f"BROKEN  {package} {asked}  could not be installed: {reason}")
            return False, asked
        results = [r for name in (package, *row.get("also", ())) for r in run_checks(python, name)]
    found = results[0].get("version", asked)
    broken = [result for result in results if not result["holds"]]
    sizes = [
        float(each["measured"])
        for each in results
        if each["holds"] and not each["leak"] and each["measured"] != "equal"
    ]
    largest = f", losses differ by {max(sizes):.0e} at most" if sizes else ""
    state = "BROKEN" if broken else "ok"
    click.echo(f"{state:<6}  {package} {found}  {len(results)} checks{largest}")
    for result in results if verbose else broken:
        state = "ok" if result["holds"] else "BROKEN"
        click.echo(f"        {state:<6}  {result['check']}: {result['measured']}")
    return not broken, found


@click.command(help=__doc__)
@click.argument("packages", nargs=-1)
@click.option("--newest", is_flag=True, help="Check the newest releases.")
@click.option("--record", is_flag=True, help="Write the versions that were proven.")
@click.option("-v", "--verbose", is_flag=True, help="Print every check.")
def main(packages: tuple[str, ...], newest: bool, record: bool, verbose: bool) -> None:
    known: dict[str, dict[str, Any]] = json.loads(RECORD.read_text())
    if unknown := [name for name in packages if name not in known]:
        raise click.UsageError(f"{unknown[0]} is none of {', '.join(known)}")
    holds = True
    for package in packages or known:
        row = known[package]
        versions: list[str | None] = [*row["versions"]]
        if newest:
            versions[-1] = None
        for number, version in enumerate(versions):
            ok, found = check(package, row, version, verbose=verbose)
            holds = holds and ok
            if ok:
                row["versions"][number] = found
    if record:
        lines = [f' "{name}": {json.dumps(row)}' for name, row in known.items()]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    sys.exit(not holds)


if __name__ == "__main__":
    main()
