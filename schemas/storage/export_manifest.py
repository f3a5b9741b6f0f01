"""export.json: the description of an export. It is written last, so its presence means complete.

`data` decides nothing and repeats nothing of the packs: format, source, counts, and every file with
its bytes and xxh3. Equal exports have equal `data`. `run`: version, seconds and path of the source.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ..canonical import canonical_json, digest_of, parse_canonical
from ..errors import FormatError
from ..files import check_path

EXPORT = "export.json"
VERSION = 1
_DATA = ("export_version", "files", "format", "source", "splits")


class Receipt(TypedDict):
    """A file of an export. samples: of a shard of MDS; they are in no export.json."""

    bytes: int
    xxh3_128: str
    samples: NotRequired[int]


@dataclass(frozen=True, kw_only=True)
class ExportManifest:
    """An export.json that passed all checks."""

    data: dict[str, Any]
    run: dict[str, object]

    @property
    def format(self) -> str:
        return str(self.data["format"])

    @property
    def files(self) -> dict[str, Receipt]:
        """Bytes and xxh3_128 of every file, by its path."""
        return dict(self.data["files"])

    @property
    def splits(self) -> dict[str, dict[str, int]]:
        """Numbers of packs, segments and tokens, and of tokens of padding left out, by split."""
        return dict(self.data["splits"])

    def to_json(self) -> bytes:
        """Content of export.json."""
        rest = {"data": self.data, "run": self.run}
        return canonical_json(rest | {"sha256": digest_of(rest)})


def parse_export(content: bytes, where: str) -> ExportManifest:
    """The manifest in these bytes. Raises FormatError if it is changed or of a newer format."""
    value = parse_canonical(content, where)
    if not isinstance(value, dict) or set(value) != {"data", "run", "sha256"}:
        raise FormatError(f"{where} is no export.json; expected the keys data, run and sha256")
    if digest_of({"data": value["data"], "run": value["run"]}) != value["sha256"]:
        raise FormatError(f"{where} does not have the sha256 that it names; restore the file")
    data = value["data"]
    if not isinstance(data, dict) or (version := data.get("export_version")) is None:
        raise FormatError(f"{where} has no export_version; restore the file")
    if version != VERSION:
        raise FormatError(
            f"{where} has export_version {version}; this packprep reads {VERSION}; install a newer "
            "packprep"
        )
    if missing := [key for key in _DATA if key not in data]:
        raise FormatError(f"{where} has no {missing[0]}; restore the file")
    for path in data["files"]:
        check_path(path, where)
    return ExportManifest(data=data, run=value["run"])


def read_export(directory: Path) -> ExportManifest | None:
    """The manifest of an export; None if the directory has none."""
    try:
        content = (directory / EXPORT).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return parse_export(content, str(directory / EXPORT))
