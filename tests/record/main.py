"""Run the cases of the record, then write its files or compare with them; see scripts/record."""

import fnmatch
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from . import inputs, refusals, setups, shared
from .running import Case, Result, differences, run, unsaid, written

FOLDER = Path(__file__).parent
PARTS: dict[str, Callable[[], list[Case]]] = {
    "setups": setups.cases,
    "refusals": refusals.cases,
    "shared": shared.cases,
}
"""Name of each file of the record, with its cases."""
FAST = 40  # cases of each file that are in every run of the tests


def fast(cases: Sequence[Case]) -> list[Case]:
    """FAST of the cases, at equal distances."""
    return [cases[number * len(cases) // FAST] for number in range(FAST)]


def recorded(part: str) -> dict[str, Any]:
    """Cases of a file of the record, by name."""
    path = FOLDER / f"{part}.json"
    listed = json.loads(path.read_bytes())["cases"] if path.exists() else []
    return {case["name"]: case for case in listed}


def differing(case: Case, recorded: Mapping[str, Any], result: Result, edition: str) -> list[str]:
    """What differs from the record, a line each."""
    if case.kind == "error" and edition != "first":
        return [*unsaid(recorded["result"], result)]
    return [*differences(recorded["result"], result)]


def entry(case: Case, result: Result) -> dict[str, Any]:
    """A case as its file has it."""
    spelled = {edition: case.commands(edition) for edition in ("first", "second")}
    return {"name": case.name, "kind": case.kind, **spelled, "result": result}


def results(cases: Iterable[Case], made: Path, edition: str) -> Iterator[tuple[Case, Result]]:
    """Run cases one after another. made: the folder of the inputs."""
    with tempfile.TemporaryDirectory(prefix="record-") as name:
        for number, case in enumerate(cases):
            if case.needs and find_spec(case.needs) is None:
                print(f"{case.name}: left out, {case.needs} is not installed")
                continue
            try:
                yield case, run(case, made, Path(name, str(number)), edition)
            except Exception as error:
                yield case, {"failed": f"{type(error).__name__}: {error}"[:300]}


@click.command()
@click.option("--check", is_flag=True, help="Compare with the record, and write nothing.")
@click.option("--only", default="*", help="Names of cases, a pattern.")
@click.option("--fast", "few", is_flag=True, help="The cases that are in every run of the tests.")
@click.option("--edition", type=click.Choice(["first", "second"]), default="first")
@click.option("--part", "parts", multiple=True, type=click.Choice([*PARTS]), help="Some files.")
def command(check: bool, only: str, few: bool, edition: str, parts: tuple[str, ...]) -> None:
    """Write the record of this tree into tests/record/*.json, or compare the tree with it."""
    if not check and (edition != "first" or only != "*" or few):
        raise click.UsageError("the record is written of all set-ups, by the first edition")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="record-inputs-") as name:
        inputs.make(Path(name))
        if shared.DATA.exists():
            Path(name, "data").symlink_to(shared.DATA)
        for part in parts or PARTS:
            if part == "shared" and not shared.DATA.exists():
                print(f"{shared.DATA} is not there: shared.json is left out")
                continue
            wrong += _part(part, Path(name), check, edition, only, few)
    sys.exit(1 if wrong else 0)


def _part(part: str, made: Path, check: bool, edition: str, only: str, few: bool) -> int:
    """Run one file of the record; return how many of its cases differ or failed."""
    began, known = time.process_time(), recorded(part)
    cases = fast(PARTS[part]()) if few else PARTS[part]()
    cases = [case for case in cases if fnmatch.fnmatch(case.name, only)]
    entries, wrong = [], 0
    for case, result in results(cases, made, edition):
        if not check:
            lines = [result["failed"]] if "failed" in result else []
        elif case.name not in known:
            lines = ["is not in the record"]
        else:
            lines = differing(case, known[case.name], result, edition)
        for line in lines:
            print(f"{part}: {case.name}: {line}", flush=True)
        wrong += bool(lines)
        entries.append(entry(case, result))
    if check and only == "*" and not few:
        gone = known.keys() - {case.name for case in cases}
        for name in sorted(gone):
            print(f"{part}: {name}: is in the record alone")
        wrong += len(gone)
    if not check:
        head = {"cases": len(entries), "tokenizers": inputs.digests(made)}
        (FOLDER / f"{part}.json").write_text(written(head, entries))
    print(f"{part}: {len(cases)} cases, {wrong} differ, {time.process_time() - began:.0f} s of CPU")
    return wrong
