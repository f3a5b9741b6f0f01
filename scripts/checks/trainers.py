"""Check that each adapter's fields keep documents apart in the trainer itself.

\b
    scripts/check_trainers                  the versions in scripts/checks/trainers.json
    scripts/check_trainers --newest         the newest releases instead
    scripts/check_trainers --newest trl     only that package

Installs each trainer into an environment of its own in a temporary folder, above the packages of
this one, and runs the checks of trainer_contracts.py there: recipes of docs/train for three
steps, whose losses must be those of the documents alone, and the trainer's own functions on packed
fields. Prints a line for each package, version and what was proven: ok or BROKEN. Exits 1 if a
contract is broken, by a newer release or here. Takes about ten minutes and 3 GB.

--record writes the versions that were proven to trainers.json and the table of docs/train/index.md.
Run it with --newest before a release.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_suffix(".json")
PAGE = ROOT / "docs" / "train" / "index.md"
CONTRACTS = Path(__file__).with_name("trainer_contracts.py")
HEAD = ("trainer", "call", "in one line", "proven with", "attention", "what is proven", "by")
_PINNED = ("torch", "numpy", "torchdata", "hypothesis", "pytest")  # all environments share these

Row = Mapping[str, Any]


def rows() -> list[dict[str, Any]]:
    """Rows of the adapters' table: package, versions that were proven, and how."""
    loaded: list[dict[str, Any]] = json.loads(RECORD.read_text())
    return loaded


def table(record: Sequence[Row]) -> list[str]:
    """Lines of the table in docs/train/index.md. A reader of exports alone has no call."""
    lines = [HEAD, ["---"] * len(HEAD)]
    for row in (row for row in record if row["calls"]):
        name = f"[{row['trainer']}]({row['page']})" if row["page"] else row["trainer"]
        calls = ", ".join(f"`{call}`" for call in row["calls"])
        versions = f"{row['package']} {', '.join(row['versions'])}"
        cells = [name, calls, row["one_line"], versions, row["attention"], row["proof"]]
        lines.append([*cells, f"`{row['test']}`"])
    return [f"| {' | '.join(cells)} |" for cells in lines]


def write_table(record: Sequence[Row]) -> None:
    """Replace the table of the page."""
    lines = PAGE.read_text().split("\n")
    first = lines.index(table(record)[0])
    end = next(place for place in range(first, len(lines)) if not lines[place].startswith("|"))
    PAGE.write_text("\n".join(lines[:first] + table(record) + lines[end:]))


def make_environment(folder: Path, row: Row, version: str | None) -> Path:
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

    package = row["package"] if version is None else f"{row['package']}=={version}"
    required = list(row.get("requires", ()))
    upgrade = ["--upgrade"] if version is None else []
    if row.get("alone"):  # its requirements conflict, and include much that the checks do not use
        pip("install", "-q", "--no-deps", *upgrade, package)
        package = ""
    wanted = [name for name in (package, *required) if name]
    if wanted:
        pip("install", "-q", "-c", str(constraints), *upgrade, *wanted)
    if row.get("without"):
        pip("uninstall", "-q", "-y", *row["without"])
    return python


def run_checks(python: Path, package: str) -> list[dict[str, Any]]:
    """Results of all checks of a package in its environment."""
    work = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [python, "-W", "ignore", CONTRACTS, package],
        cwd=ROOT,
        env={**os.environ, **work},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{"check"')]
    results = [json.loads(line) for line in lines]
    if ran.returncode or not results:
        last = (ran.stderr.strip() or "no check ran").splitlines()[-1]
        results.append({"check": f"{package}: all checks", "holds": False, "measured": last})
    return results


def check(row: Row, version: str | None, *, verbose: bool) -> tuple[bool, str]:
    """Check one trainer, print its lines, and return its version and True if all holds."""
    package, asked = row["package"], version or "newest"
    with tempfile.TemporaryDirectory() as folder:
        try:
            python = make_environment(Path(folder), row, version)
        except subprocess.CalledProcessError as error:
            errors = [line for line in error.stderr.splitlines() if line.startswith("ERROR")]
            reason = (errors or [str(error)])[-1]
            click.echo(f"BROKEN  {package} {asked}  could not be installed: {reason}")
            return False, asked
        results = [r for name in (package, *row.get("also", ())) for r in run_checks(python, name)]
    found = results[0].get("version", asked)
    broken = [result for result in results if not result["holds"]]
    sizes = [float(r["measured"]) for r in results if r["holds"] and _is_loss(r)]
    largest = f", losses differ by {max(sizes):.0e} at most" if sizes else ""
    state = "BROKEN" if broken else "ok"
    count = "1 check" if len(results) == 1 else f"{len(results)} checks"
    click.echo(f"{state:<6}  {package} {found}  {count}{largest}: {_plain(row['proof'])}")
    for result in results if verbose else broken:
        state = "ok" if result["holds"] else "BROKEN"
        click.echo(f"        {state:<6}  {result['check']}: {result['measured']}")
    return not broken, found


def _is_loss(result: Mapping[str, Any]) -> bool:
    return not result["leak"] and result["measured"] != "equal"


def _plain(text: str) -> str:
    return text.replace("`", "")


@click.command(help=__doc__)
@click.argument("packages", nargs=-1)
@click.option("--newest", is_flag=True, help="Check the newest releases.")
@click.option("--record", is_flag=True, help="Write the versions that were proven.")
@click.option("--edition", type=click.Choice(["first", "second"]), default="first")
@click.option("-v", "--verbose", is_flag=True, help="Print every check.")
def main(
    packages: tuple[str, ...], newest: bool, record: bool, edition: str, verbose: bool
) -> None:
    os.environ["PACKPREP_EDITION"] = edition
    known = rows()
    names = [row["package"] for row in known if not row.get("like")]
    if unknown := [name for name in packages if name not in names]:
        raise click.UsageError(f"{unknown[0]} is none of {', '.join(names)}")
    holds = True
    for row in known:
        if row.get("like") or (packages and row["package"] not in packages):
            continue
        if edition == "second" and row["package"] == "mosaicml-streaming":
            continue  # only the first exports to its format
        versions: list[str | None] = [*row["versions"]]
        if newest:
            versions[-1] = None
        for number, version in enumerate(versions):
            ok, found = check(row, version, verbose=verbose)
            holds = holds and ok
            if ok:
                row["versions"][number] = found
    if record:
        proven = {row["package"]: row["versions"] for row in known if not row.get("like")}
        for row in known:
            row["versions"] = proven.get(row["package"], row["versions"])
        RECORD.write_text(json.dumps(known, indent=1) + "\n")
        write_table(known)
    sys.exit(not holds)


if __name__ == "__main__":
    main()
