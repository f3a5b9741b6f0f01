"""Reads report.json, of an output (checked against its manifest) or as a single file."""

import json
from pathlib import Path
from typing import cast

from packprep.schemas.files import MANIFEST
from packprep.schemas.form import form_fault
from packprep.schemas.listed import check_file
from packprep.schemas.manifest import Manifest, Output, read_manifest
from packprep.schemas.report import Report
from packprep.support.errors import InputError
from packprep.support.json_words import json_fault, json_kind

NAME = "report.json"


def read_report(path: Output, manifest: Manifest | None = None) -> Report:
    """Read the report of an output, or a report.json. Raises InputError if it is not a report.

    manifest: of the output, if it is read already.
    """
    if not isinstance(path, Path) or path.is_dir():
        report = find_report(path, manifest or read_manifest(path))
        if report is None:
            raise InputError(
                f"{path} has no {NAME} in its {MANIFEST}; expected the output of packprep build"
            )
    else:
        report = _read(path, f"a {NAME} or an output of packprep build")
    return report


def find_report(output: Output, manifest: Manifest) -> Report | None:
    """Read the report that the manifest lists; None if it lists none.

    Raises FormatError if the file has changed.
    """
    entries = [entry for entry in manifest.all_files if entry.path == NAME]
    if not entries:
        return None
    path = check_file(output, entries[0], "sha256")
    report, sources = _read(path, f"a {NAME}"), manifest.data["sources"]
    if len(report["sources"]) < len(sources):
        raise InputError(
            f"{path} has {len(report['sources'])} sources; expected the {len(sources)} of the "
            f"{MANIFEST}"
        )
    return report


def _read(path: Path, expected: str) -> Report:
    loaded = read_json(path, expected)
    fault: str | None = "it has no report_version"
    if "report_version" in loaded:
        fault = form_fault(loaded, "report", later_keys=True)
    if fault is not None:
        raise InputError(f"{path} is not a report of packprep: {fault}; expected a {NAME}")
    return cast("Report", loaded)


def read_json(path: Path, expected: str) -> dict[str, object]:
    """Read a JSON object. Raises InputError, which names `expected`, if the file has none."""
    try:
        loaded = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; expected {expected}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON: {json_fault(error)}; expected {expected}") from None
    if not isinstance(loaded, dict):
        raise InputError(f"{path} holds {json_kind(loaded)}; expected {expected}")
    return loaded
