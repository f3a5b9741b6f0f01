"""Writes an SBOM (CycloneDX 1.6) and the licences of packprep and its installed dependencies.

\b
python scripts/checks/sbom.py SBOM [LICENSES]    writes both; extras are not included
python scripts/checks/sbom.py --check            exits 1 and names each package without a licence

Versions, dependencies and licences are those that the installed packages state. The same packages
give the same bytes.
"""

import importlib.metadata
import json
import re
import sys
from pathlib import Path
from typing import Any

import click
from packaging.requirements import Requirement

_NAME = "packprep"


def needed(root: str = _NAME) -> dict[str, list[str]]:
    """Installed packages that `root` needs, itself included: names by the name that needs them."""
    graph: dict[str, list[str]] = {}
    waiting = [(normalized(root), frozenset[str]())]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        uses = graph.setdefault(name, [])
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            other = (normalized(requirement.name), frozenset(requirement.extras))
            if other[0] not in uses:
                uses.append(other[0])
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return {name: sorted(graph[name]) for name in sorted(graph)}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def license_of(name: str) -> str:
    """Licence that a package states; "" if none.

    The first of: its expression, its classifiers, and the first lines of its field and its file.
    """
    facts = importlib.metadata.metadata(name)
    if "License-Expression" in facts:
        return str(facts["License-Expression"])
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in facts.get_all("Classifier") or []
        if line.startswith("License :: ") and not line.endswith("OSI Approved")
    ]
    if classifiers:
        return "; ".join(classifiers)
    files = [
        file.read_text()
        for file in importlib.metadata.files(name) or []
        if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING"))
    ]
    texts = [str(facts["License"]) if "License" in facts else "", *files]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    return lines[0][:100] if lines else ""


def sbom(graph: dict[str, list[str]]) -> dict[str, Any]:
    """The CycloneDX document of `needed`."""

    def component(name: str) -> dict[str, Any]:
        version = importlib.metadata.version(name)
        shown: dict[str, Any] = {
            "type": "application" if name == _NAME else "library",
            "bom-ref": reference(name),
            "name": name,
            "version": version,
            "purl": reference(name),
        }
        stated = license_of(name)
        return shown | ({"licenses": [{"license": {"name": stated}}]} if stated else {})

    def reference(name: str) -> str:
        version = importlib.metadata.version(name)
        return f"pkg:pypi/{name}@{version.replace('+', '%2B')}"

    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(_NAME)},
        "components": [component(name) for name in graph if name != _NAME],
        "dependencies": [
            {"ref": reference(name), "dependsOn": [reference(use) for use in uses]}
            for name, uses in graph.items()
        ],
    }


@click.command(help=__doc__)
@click.argument("path", required=False, metavar="[SBOM]", type=click.Path(path_type=Path))
@click.argument("licenses", required=False, metavar="[LICENSES]", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Name each package that states no licence.")
def main(path: Path | None, licenses: Path | None, check: bool) -> None:
    graph = needed()
    if check and (unknown := [name for name in graph if not license_of(name)]):
        sys.exit(f"no licence is stated by {', '.join(unknown)}")
    if path is not None:
        path.write_text(json.dumps(sbom(graph), indent=2) + "\n")
    if licenses is not None:
        lines = [f"{name} {importlib.metadata.version(name)}: {license_of(name)}" for name in graph]
        licenses.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
