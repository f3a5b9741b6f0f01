"""manifest.json: the description of an output. It is written last, so its presence means complete.

It has three keys. `data`: everything that decides the bytes, and the digests of those bytes; equal
for equal builds on any machine. `run`: facts of this build (versions, seconds, paths). `sha256`:
digest of the other two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from .canonical import digest_of, parse_canonical
from .columns import STANDARD_COLUMNS, Column
from .errors import FormatError
from .files import MANIFEST, shard_name
from .form import form_fault
from .index_table import IndexTable, parse_index
from .ledger import check_ledger
from .names import Names, packprep_columns, spelling_of

FORMAT_VERSION = 1
"""Version of outputs whose segments are documents, or pieces of them."""
NEWEST_VERSION = 2
"""The highest version that is read: of outputs with trees, and of indexes."""


def format_version(columns: Iterable[str]) -> int:
    """The lowest version whose readers understand these columns: 2 for trees, else 1."""
    return NEWEST_VERSION if "segment_parents" in columns else FORMAT_VERSION


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """A file of the output.

    packs, tokens and split are None unless the file is a shard. epoch: the packing of the documents
    that a shard belongs to, if the output has several. phase: that of a shard, if there are phases.
    """

    path: str
    bytes: int
    sha256: str
    packs: int | None = None
    tokens: int | None = None
    split: str | None = None
    epoch: int | None = None
    phase: int | None = None

    @property
    def is_shard(self) -> bool:
        return self.packs is not None

    @property
    def run(self) -> int | None:
        """Its epoch or phase; None if the output is one run."""
        return self.epoch if self.phase is None else self.phase

    def to_json(self) -> dict[str, str | int]:
        """The entry as `data` and `run` list it."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class SplitCounts:
    """Packs, documents and tokens of one split."""

    packs: int
    segments: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class PhaseCounts:
    """One phase: its packs are consecutive in every split.

    tokens, shares: what was asked for, of all sources and of each. splits: as those of the output.
    """

    max_length: int
    tokens: int
    shares: tuple[float, ...]
    splits: dict[str, SplitCounts]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest that passed all checks.

    data, run: plain JSON values. Most readers need only the properties.
    """

    data: dict[str, Any]
    run: dict[str, Any]
    sha256: str

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns of every pack, with packprep's names, in the order of a shard's fields."""
        return packprep_columns(self.stored_columns)

    @cached_property
    def stored_columns(self) -> tuple[Column, ...]:
        """The columns of every shard with its own names, in the order of its fields."""
        return tuple(_column(value) for value in self.data["columns"])

    @property
    def names(self) -> Names:
        """Spelling of the columns in the shards: see names.py."""
        return spelling_of(self.stored_columns)

    @property
    def is_index(self) -> bool:
        """True if the output holds the plan of its packs, and its tokens are in token files."""
        return "index" in self.data

    @cached_property
    def index_table(self) -> IndexTable:
        """The token files of an index output."""
        shards = sum(entry.is_shard for entry in self.files)
        return parse_index(self.data["index"], shards, MANIFEST)

    @cached_property
    def file_columns(self) -> tuple[Column, ...]:
        """The columns of the shard files: `stored_columns`, or those of an index."""
        return self.index_table.columns if self.is_index else self.stored_columns

    @property
    def added(self) -> tuple[str, ...]:
        """Columns that the build wrote only because the spelling needs them."""
        return tuple(self.data.get("added", ()))

    @cached_property
    def files(self) -> tuple[FileEntry, ...]:
        """The files whose bytes `data` decides: shards, and the JSON that `datasets` reads."""
        return tuple(FileEntry(**value) for value in self.data["files"])

    @cached_property
    def all_files(self) -> tuple[FileEntry, ...]:
        """Every file except manifest.json: `files`, and files with facts of the run."""
        return self.files + tuple(FileEntry(**value) for value in self.run.get("files", []))

    @cached_property
    def splits(self) -> dict[str, SplitCounts]:
        """Counts of each split, by name; one split, "train", unless documents were held out."""
        return {name: SplitCounts(**counts) for name, counts in self.data["splits"].items()}

    @property
    def epochs(self) -> int:
        """Packings of the same documents, one for each epoch."""
        return int(self.data.get("epochs", 1))

    def shards(self, split: str, epoch: int | None = None) -> tuple[FileEntry, ...]:
        """The shards of one split, in row order. epoch: only those of this one."""
        return tuple(
            entry
            for entry in self.files
            if entry.is_shard and entry.split == split and epoch in (None, entry.epoch or 0)
        )

    @property
    def part_name(self) -> str:
        """Name of what `turn_ids` number in a row: message, or document of a row split at EOS."""
        options = self.data.get("inputs", {}).get("options", {})
        return "message" if options.get("boundaries") is None else "document"

    @property
    def has_trees(self) -> bool:
        """True if segments are nodes of trees (--share-prefixes)."""
        return any(column.name == "segment_parents" for column in self.columns)

    @cached_property
    def phases(self) -> tuple[PhaseCounts, ...]:
        """The phases of the output, in order; empty for an output without phases."""
        return tuple(
            PhaseCounts(
                max_length=int(value["max_length"]),
                tokens=int(value["tokens"]),
                shares=tuple(map(float, value["shares"])),
                splits={name: SplitCounts(**counts) for name, counts in value["splits"].items()},
            )
            for value in self.data.get("phases", ())
        )

    def longest(self, entry: FileEntry) -> int:
        """Most tokens of a pack in a shard: that of its phase."""
        return self.max_length if entry.phase is None else self.phases[entry.phase].max_length

    @property
    def format_version(self) -> int:
        return int(self.data["format_version"])

    @property
    def max_length(self) -> int:
        """Most tokens of a pack."""
        return int(self.data["max_length"])

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return int(self.data["vocab_size"])

    @property
    def ledger(self) -> dict[str, Any]:
        """Outcome of every token: see `check_ledger`."""
        return dict(self.data["ledger"])

    @property
    def identity(self) -> str:
        """Digest of the inputs: options that decide the bytes, sources, tokenizer.

        Outputs with equal identities have equal bytes.
        """
        return str(self.data["identity"])

    def fingerprint(self, split: str, epoch: int | None = None) -> int:
        """Number below 2^60, equal for the same packs of a split in the same order.

        epoch: only those of this one.
        """
        return int(digest_of([entry.sha256 for entry in self.shards(split, epoch)])[:15], 16)

    @property
    def num_documents(self) -> int:
        """Documents of all sources."""
        documents: int = sum(source["documents"] for source in self.data["sources"])
        return documents

    @property
    def num_packs(self) -> int:
        return sum(counts.packs for counts in self.splits.values())

    @property
    def num_tokens(self) -> int:
        return sum(counts.tokens for counts in self.splits.values())


class FetchedOutput(Protocol):
    """Protocol of an output whose files are fetched to be read, such as `RemoteOutput`."""

    @property
    def name(self) -> str: ...

    @property
    def manifest(self) -> Manifest: ...

    def fetch(self, entry: FileEntry) -> Path:
        """Path of the file, fetched if necessary.

        Raises FormatError if it is missing or differs from the manifest.
        """


Output = Path | FetchedOutput
"""A finished output, in a directory or elsewhere; `read_manifest` and `check_file` take either."""


def read_manifest(directory: str | Output) -> Manifest:
    """The manifest of an output.

    Raises FormatError if it is missing, changed by one bit, of a newer format or inconsistent.
    """
    if not isinstance(directory, (str, Path)):
        return directory.manifest
    path = Path(directory) / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise FormatError(
            f"{path} does not exist; expected the finished output of packprep build"
        ) from None
    except (NotADirectoryError, IsADirectoryError):
        raise FormatError(
            f"{path} is not a file; expected the finished output of packprep build"
        ) from None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from None
    return parse_manifest(content, str(path))


def parse_manifest(content: bytes, where: str) -> Manifest:
    """The manifest in these bytes, with all checks of `read_manifest`.

    where: its name in messages.
    """
    value = parse_canonical(content, where)
    if not isinstance(value, dict) or set(value) != {"data", "run", "sha256"}:
        raise FormatError(
            f"{where} is not a manifest; expected exactly the keys data, run and sha256"
        )
    rest = {"data": value["data"], "run": value["run"]}
    if (digest := digest_of(rest)) != value["sha256"]:
        raise FormatError(
            f"{where} has sha256 {value['sha256']!r} but its content gives {digest!r}; restore the "
            "file"
        )
    _check(value, where)
    return Manifest(data=value["data"], run=value["run"], sha256=digest)


def _check(value: Any, where: str) -> None:
    """Check everything that a reader relies on: the form by the JSON Schema, then the meaning.

    The version is checked first, because a newer format may have changed everything else.
    """
    data, run = value["data"], value["run"]
    version = data.get("format_version") if isinstance(data, dict) else None
    if type(version) is int and version > NEWEST_VERSION:
        raise FormatError(
            f"{where} has format version {version}; this packprep reads up to {NEWEST_VERSION}; "
            "install a newer packprep"
        )
    if fault := form_fault(value, "manifest"):
        raise FormatError(f"{where} is not a manifest of packprep: {fault}; restore the file")
    if (identity := digest_of(data["inputs"])) != data["identity"]:
        raise FormatError(
            f"{where} has identity {data['identity']!r}; its inputs give {identity!r}"
        )
    columns = [_column(value) for value in data["columns"]]
    packprep_columns(columns, where)
    added, names = data.get("added", []), [column.name for column in columns]
    if not set(added) <= set(names):
        raise FormatError(f"{where} has added = {added!r}; expected names of its columns")
    _check_files(data, run, where)
    if "index" in data:
        shards = sum(file["path"].endswith(".arrow") for file in data["files"])
        parse_index(data["index"], shards, where)
    check_ledger(data["ledger"], f"{where} ledger")
    packed, stored = (
        data["ledger"]["tokens_packed"],
        sum(counts["tokens"] for counts in data["splits"].values()),
    )
    if packed != stored:
        raise FormatError(
            f"{where} ledger has tokens_packed {packed}; the splits hold {stored} tokens"
        )


def _check_files(data: Any, run: Any, where: str) -> None:
    """Check that paths are unique, and that the shards of a split add up to its counts.

    Also that they are numbered, and have an epoch or a phase if the output has several.
    """
    splits, files = data["splits"], data["files"]
    paths = {MANIFEST}
    for value in [*files, *run.get("files", [])]:
        if value["path"] in paths:
            raise FormatError(
                f"{where} files {value['path']} is listed twice, or is the manifest itself; "
                "expected each file once"
            )
        paths.add(value["path"])
    shards: dict[str, list[Any]] = {name: [] for name in splits}
    for value in files:
        if not value["path"].endswith(".arrow"):
            continue
        for key, table in (("epoch", "epochs"), ("phase", "phases")):
            if (key in value) != (table in data):
                raise FormatError(
                    f"{where} files {value['path']} has {key} {value.get(key)}; expected one only "
                    f"if the output has {table}"
                )
        if value["split"] not in splits:
            raise FormatError(
                f"{where} files {value['path']} has the split {value['split']!r}; the splits are "
                f"{', '.join(splits)}"
            )
        shards[value["split"]].append(value)
    for name, listed in shards.items():
        for number, value in enumerate(listed):
            if value["path"].split("/")[-1] != (expected := shard_name(number, len(listed))):
                raise FormatError(
                    f"{where} files has {value['path']} as a shard of {name}; expected {expected} "
                    "there"
                )
        epochs = [value["epoch"] for value in listed if "epochs" in data]
        if epochs != sorted(epochs) or {*epochs} not in (set(), {*range(data.get("epochs", 1))}):
            raise FormatError(
                f"{where} has shards of {name} in the epochs {', '.join(map(str, epochs))}; "
                f"expected 0 to {data['epochs'] - 1} in this order, each with a shard"
            )
        _check_sums(f"{where} split {name}", splits[name], listed)
    if "phases" in data:
        _check_phases(data, shards, where)


def _check_sums(place: str, counts: Any, shards: Sequence[Any]) -> None:
    """Check that shards add up to the packs and tokens of their split, or of a phase of it."""
    packs, tokens = (sum(value[key] for value in shards) for key in ("packs", "tokens"))
    if (packs, tokens) != (counts["packs"], counts["tokens"]):
        raise FormatError(
            f"{place} has {counts['packs']} packs of {counts['tokens']} tokens; its shards add up "
            f"to {packs} packs of {tokens} tokens"
        )


def _check_phases(data: Any, shards: dict[str, list[Any]], where: str) -> None:
    """Check that the shards of each phase are consecutive and add up to its counts."""
    phases = data["phases"]
    longest = max(phase["max_length"] for phase in phases)
    if longest != data["max_length"]:
        raise FormatError(
            f"{where} has max_length {data['max_length']}; the longest of its phases is {longest}"
        )
    for number, phase in enumerate(phases):
        if unknown := phase["splits"].keys() - shards:
            raise FormatError(
                f"{where} phase {number} has the split {min(unknown)!r}; the splits are "
                f"{', '.join(shards)}"
            )
    for split, listed in shards.items():
        numbers = [value["phase"] for value in listed]
        if numbers != sorted(numbers) or max(numbers, default=0) >= len(phases):
            raise FormatError(
                f"{where} has shards of {split} in the phases {', '.join(map(str, numbers))}; "
                f"expected 0 to {len(phases) - 1}, in rising order"
            )
        for number, phase in enumerate(phases):
            counts = phase["splits"].get(split, {"packs": 0, "tokens": 0})
            of_phase = [value for value in listed if value["phase"] == number]
            _check_sums(f"{where} phase {number} of {split}", counts, of_phase)


def _column(value: Any) -> Column:
    standard = STANDARD_COLUMNS.get(value["name"])
    return Column(**value, meaning=standard.meaning if standard else "")
