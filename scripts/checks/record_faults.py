"""Plant faults in a copy of the tree, one at a time, and show that the record fails for each.

    python scripts/checks/record_faults.py
    python scripts/checks/record_faults.py --only position
    python scripts/checks/record_faults.py --whole

Prints for each fault how many set-ups and bad inputs differ, and some of their names. Exits 1 if
the record passes a fault, or fails without one. It runs the cases that are in every run of the
tests, or all of them.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).resolve().parents[2]
TREE = ("packprep", "loaders", "schemas", "tests", "scripts", "docs", "pyproject.toml", "README.md")


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str


FAULTS = (
    Fault("none", "README.md", "#", "#"),
    Fault(
        "one token less of a truncated document",
        "packprep/windows/cut.py",
        "return np.minimum(parts, most)\n",
        "return np.minimum(parts, most - 1)\n",
    ),
    Fault(
        "another seed of the order of packs",
        "packprep/packing/order.py",
        "stream(seed, Purpose.PACK_ORDER)",
        "stream(seed + 1, Purpose.PACK_ORDER)",
    ),
    Fault(
        "answers with train: false are trained",
        "packprep/chat/turn_locator.py",
        "if index not in conversation.untrained]",
        "if index not in ()]",
    ),
    Fault(
        "EOS in place of BOS",
        "packprep/packing/kernels/gather.py",
        "out[cursor] = bos\n",
        "out[cursor] = eos\n",
    ),
    Fault(
        "positions from 1",
        "schemas/index/packs.py",
        "before = np.zeros_like(self.lengths) if self._trees",
        "before = np.ones_like(self.lengths) if self._trees",
    ),
    Fault(
        "other documents held out",
        "packprep/windows/documents.py",
        "stream(seed, Purpose.HOLDOUT)",
        "stream(seed, Purpose.DRAW)",
    ),
    Fault(
        "one repeated token with a label",
        "packprep/windows/cut.py",
        "np.where(number > 0, np.int32(cutting.stride)",
        "np.where(number > 0, np.int32(cutting.stride - 1)",
    ),
    Fault(
        "the shortest documents that are kept are dropped",
        "packprep/windows/filters.py",
        "uncut.parts < max(",
        "uncut.parts <= max(",
    ),
    Fault(
        "the sides of a pair exchanged",
        "schemas/index/packs.py",
        'second = starts >= rows.numbers("pair_split")',
        'second = starts < rows.numbers("pair_split")',
    ),
    Fault(
        "the row after the bad one is named",
        "packprep/sources/units.py",
        'place = f"{source.name} row {row}"',
        'place = f"{source.name} row {row + 1}"',
    ),
)


@click.command(help=__doc__)
@click.option("--only", default="", help="Part of the names of faults.")
@click.option(
    "--whole", is_flag=True, help="Run all set-ups and bad inputs; a minute for each fault."
)
def main(only: str, whole: bool) -> None:
    passed = 0
    for fault in FAULTS:
        if only in fault.name:
            cases = _differing(fault, whole)
            passed += bool(cases) == (fault.name == "none")
            print(f"{fault.name}: {len(cases)} differ: {'; '.join(cases[:8])}", flush=True)
    sys.exit(1 if passed else 0)


def _differing(fault: Fault, whole: bool) -> list[str]:
    """Names of the cases that differ with a fault."""
    with tempfile.TemporaryDirectory() as name:
        for part in TREE:
            subprocess.run(["cp", "-a", str(ROOT / part), name], check=True)
        source = Path(name, fault.file)
        text = source.read_text()
        assert text.count(fault.old) == 1 or fault.name == "none", fault
        source.write_text(text.replace(fault.old, fault.new, 1))
        for cached in source.parent.glob(f"__pycache__/{source.stem}.*"):
            cached.unlink()
        parts = ("--part", "setups", "--part", "refusals", *(() if whole else ("--fast",)))
        done = subprocess.run(
            [sys.executable, "scripts/record", "--check", *parts],
            cwd=name,
            env=os.environ | {"PYTHONPATH": name},
            capture_output=True,
            text=True,
            check=False,
        )
    lines = re.findall(r"^(?:setups|refusals): (.*?): ", done.stdout, re.MULTILINE)
    assert "refusals: " in done.stdout, done.stderr[-2000:]
    return list(dict.fromkeys(lines))


if __name__ == "__main__":
    main()
