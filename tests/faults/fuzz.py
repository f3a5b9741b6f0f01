"""Damage on purpose.

Outputs changed at random and read again, and whole builds of random corpora taken apart.

`python -m tests.faults.fuzz readers --seconds 600 --seed 1`, `... corpora --count 1000 --seed 1`
and `... mixes --count 300 --seed 1`, of sound outputs that `verify` must not reject, are the long
runs; each prints one line. The short ones are tests (test_fuzz.py). Everything follows from the
seed.
"""

import contextlib
import copy
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa

from packprep.loaders import PackedLoader, PackedShards
from packprep.schemas import FormatError, canonical_json, check_files, digest_of, read_manifest
from packprep.schemas.canonical import file_digest
from tests.helpers.tiny_shards import EXAMPLE, RICH, rich_row, write_output

# Values that break what expects a count, a name or a list.
_ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    7,
    2**31 - 1,
    2**31,
    2**63,
    2**64,
    10**30,
    0.5,
    -0.0,
    1e308,
    "",
    "a",
    "\0",
    "é",
    "\u2028",
    "..",
    "../a",
    "/etc/passwd",
    "train",
    "validation",
    "manifest.json",
    "data-00000-of-00001.arrow",
    "0" * 64,
    "x" * 300,
    [],
    {},
    [[]],
    [None],
    {"": 0},
)


@dataclass
class Tally:
    """Number of times each outcome occurred."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        listed = ", ".join(
            f"{count:,} {outcome}" for outcome, count in sorted(self.outcomes.items())
        )
        return f"{self.cases:,} cases: {listed}"


def fuzz_readers(seconds: float, seed: int, cases: int | None = None) -> Tally:
    """Read damaged outputs for so long, or so many `cases`. Raises whatever is not a FormatError.

    A crash of the process is a finding too: nothing catches it.
    """
    draw = random.Random(seed)
    tally = Tally()
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        whole = _outputs(Path(folder))
        while time.monotonic() < until and (cases is None or tally.cases < cases):
            kind, damage = draw.choice(list(_DAMAGES.items()))
            source = draw.choice(whole)
            target = Path(folder) / "damaged"
            shutil.copytree(source, target)
            try:
                damage(target, draw)
                outcome = read_everything(target)
            except Exception as error:
                error.add_note(f"damage {kind} of {source.name}, case {tally.cases} of seed {seed}")
                raise
            tally.cases += 1
            tally.outcomes[f"{kind}: {outcome}"] += 1
            shutil.rmtree(target)
    return tally


def read_everything(directory: Path) -> str:
    """Outcome, "read" or "refused", after all that the readers offer was asked of the directory."""
    outcome = "read"
    with _refusals() as refused:
        manifest = read_manifest(directory)
        for level in ("size", "sha256"):
            check_files(directory, manifest, level)
        names: list[str | None] = list(manifest.splits)
    if refused:
        outcome, names = "refused", [None, "train"]
    for split in names:
        for verify in (False, True):
            with _refusals() as refused:
                _read_packs(directory, split, verify)
            outcome = "refused" if refused else outcome
    return outcome


def _read_packs(directory: Path, split: str | None, verify: bool) -> None:
    try:
        shards = PackedShards(directory, split=split, verify=verify)
    except FormatError:
        raise
    # a split that is not there, or nothing to verify: the caller's mistake, not the file's
    except ValueError as error:
        if "split" not in str(error) and "no manifest" not in str(error):
            raise
        return
    for pack in shards:
        total = sum(int(values.astype(np.float64).sum() != 0) for values in pack.columns.values())
        assert total >= 0
        assert len(pack.position_ids) == len(pack.tokens)
        for segment in pack.segments():
            assert segment.tokens.sum() is not None
    _ = (
        shards.max_length,
        shards.fingerprint,
        shards.column_kinds,
        shards.column_dtypes,
        shards.segment_multiple,
    )
    if len(shards) and shards.max_length <= 1 << 20:  # a batch has that many tokens
        for batch, _ in zip(
            PackedLoader(shards, packs_per_batch=1, shuffle=True), range(3), strict=False
        ):
            assert len(batch.tokens) > 0
    with _refusals():
        assert shards.report is not None


class _Refused(list[str]):
    pass


@contextlib.contextmanager
def _refusals() -> Any:
    """Catches the one error that readers may raise, and keeps its sentence."""
    refused = _Refused()
    try:
        yield refused
    except FormatError as error:
        refused.append(str(error))
        assert "\n" not in str(error), str(error)


def _outputs(folder: Path) -> list[Path]:
    """Whole outputs of every shape.

    One split and two, few columns and all, one batch and many, a saved dataset.
    """
    write_output(folder / "plain", {"train": [EXAMPLE, EXAMPLE * 3]})
    rich = {"train": [[rich_row(0, 3, 4), rich_row(2, 1)]], "validation": [[rich_row(6, 5)]]}
    write_output(folder / "rich", rich, RICH, max_length=16)
    shutil.copytree(folder / "plain", folder / "saved")
    (folder / "saved" / "manifest.json").unlink()
    return [folder / name for name in ("plain", "rich", "saved")]


# Damages: each changes a directory
# ---------------------------------------------------------------------------------


def _files(directory: Path, suffix: str = "") -> list[Path]:
    return sorted(path for path in directory.rglob(f"*{suffix}") if path.is_file())


def _flip(directory: Path, draw: random.Random) -> None:
    """Bytes of a file."""
    path = draw.choice(_files(directory))
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 8))):
        if content:
            content[draw.randrange(len(content))] = draw.choice(
                (0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256))
            )
    path.write_bytes(content)


def _flip_signed(directory: Path, draw: random.Random) -> None:
    """Bytes of a shard that the manifest vouches for.

    Nothing but the reader's own checks stands before them.
    """
    path = draw.choice(_files(directory, ".arrow"))
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 8))):
        content[draw.randrange(len(content))] = draw.choice(
            (0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256))
        )
    path.write_bytes(content)
    sign(directory)


def _cut(directory: Path, draw: random.Random) -> None:
    """A file's end, taken away or added to."""
    path = draw.choice(_files(directory))
    content = path.read_bytes()
    at = draw.randrange(len(content) + 1)
    path.write_bytes(content[:at] + draw.choice((b"", b"", content[:at], b"\0" * 64)))
    if draw.random() < 0.5:
        sign(directory)


def _splice(directory: Path, draw: random.Random) -> None:
    """Files that change places, or a part of one in another."""
    first, second = draw.choice(_files(directory)), draw.choice(_files(directory))
    one, other = first.read_bytes(), second.read_bytes()
    if draw.random() < 0.5:
        first.write_bytes(other)
        second.write_bytes(one)
    else:
        at = draw.randrange(len(one) + 1)
        first.write_bytes(one[:at] + other[draw.randrange(len(other) + 1) :])
    if draw.random() < 0.5:
        sign(directory)


def _remove(directory: Path, draw: random.Random) -> None:
    """A file, or what it is."""
    path = draw.choice(_files(directory))
    path.unlink()
    match draw.randrange(5):
        case 0:
            path.mkdir()
        case 1:
            path.symlink_to("nowhere")
        case 2:
            path.symlink_to(path.name)
        case 3:
            path.symlink_to("/etc/hostname")


def _change_value(directory: Path, draw: random.Random) -> None:
    """Values somewhere in a JSON file.

    A manifest is signed again, so that its values are what must be refused.
    """
    path = draw.choice(_files(directory, ".json"))
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        return
    for _ in range(draw.choice((1, 1, 2, 3))):
        value = changed(value, draw)
    write_signed(path, value)


def changed(value: Any, draw: random.Random) -> Any:
    """A copy with one place changed."""
    value = copy.deepcopy(value)
    place = {"": value}
    holder: Any = place
    key: Any = ""
    while isinstance(holder[key], dict | list) and holder[key] and draw.random() < 0.85:
        holder = holder[key]
        key = draw.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    match draw.randrange(6):
        case 0 if holder is not place:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[draw.choice(("", "a", "path", "packs", "bytes", "sha256", str(key) + "x"))] = (
                draw.choice(_ODD)
            )
        case 2 if isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        case 3 if isinstance(holder[key], int):
            holder[key] += draw.choice((-1, 1, 1000))
        case _:
            holder[key] = draw.choice(_ODD)
    return place[""]


def write_signed(path: Path, value: Any) -> None:
    """Canonical, and a manifest with the digests that its values give: damage, not noise."""
    if path.name == "manifest.json" and isinstance(value, dict) and {"data", "run"} <= set(value):
        data = value["data"]
        if isinstance(data, dict) and isinstance(data.get("inputs"), dict):
            data["identity"] = digest_of(data["inputs"])
        value["sha256"] = digest_of({"data": data, "run": value["run"]})
    try:
        path.write_bytes(canonical_json(value))
    except ValueError:
        path.write_text(json.dumps(value))


def sign(directory: Path) -> None:
    """Sizes and digests of all files as they are now, into the manifest."""
    try:
        value = json.loads((directory / "manifest.json").read_bytes())
        for entry in [*value["data"]["files"], *value["run"]["files"]]:
            path = directory / entry["path"]
            if path.is_file():
                entry |= {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    except (ValueError, KeyError, TypeError, OSError):
        return
    write_signed(directory / "manifest.json", value)


def _other_shard(directory: Path, draw: random.Random) -> None:
    """A shard that is a sound Arrow stream of other columns, types, nulls and lengths."""
    path = draw.choice(_files(directory, ".arrow"))
    names = [
        "tokens",
        "cu_seqlens",
        "position_ids",
        "document_ids",
        "document_starts",
        "labels",
        "seq_lengths",
        "input_ids",
    ]
    types: list[pa.DataType] = [pa.list_(pa.int32())] * 6
    types += [
        pa.list_(pa.int64()),
        pa.large_list(pa.int32()),
        pa.int32(),
        pa.string(),
        pa.list_(pa.float32()),
    ]
    types += [
        pa.list_(pa.list_(pa.int32())),
        pa.null(),
        pa.list_(pa.int32(), 2),
        pa.list_(pa.string()),
    ]
    chosen = draw.sample(names, draw.randrange(len(names) + 1)) + draw.choices(
        names, k=draw.randrange(2)
    )
    rows = draw.randrange(4)
    columns = [_random_column(draw.choice(types), rows, draw) for _ in chosen]
    table = pa.Table.from_arrays(columns, names=chosen)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    sign(directory)


def _random_column(kind: pa.DataType, rows: int, draw: random.Random) -> "pa.Array[Any]":
    def value(kind: pa.DataType) -> Any:
        element: pa.DataType = getattr(kind, "value_type", pa.null())  # of a list
        if draw.random() < 0.05 or pa.types.is_null(kind):
            return None
        if pa.types.is_fixed_size_list(kind):
            return [value(element) for _ in range(kind.list_size)]
        if pa.types.is_nested(kind):
            return [value(element) for _ in range(draw.randrange(5))]
        if pa.types.is_string(kind):
            return draw.choice(("", "a"))
        return draw.choice((0, 0, 1, 2, 3, 4, 8, -1, -100, 2**24))

    return pa.array([value(kind) for _ in range(rows)], kind)


_DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "bytes": _flip,
    "signed bytes": _flip_signed,
    "length": _cut,
    "splice": _splice,
    "file": _remove,
    "value": _change_value,
    "shard": _other_shard,
}


@click.group()
def main() -> None:
    """Long runs of what the tests do for a moment."""


@main.command()
@click.option("--seconds", default=600.0)
@click.option("--seed", default=1)
def readers(seconds: float, seed: int) -> None:
    """Read damaged outputs."""
    click.echo(f"readers, seed {seed}, {seconds:g} s: {fuzz_readers(seconds, seed)}")


@main.command()
@click.option("--count", default=1000)
@click.option("--seed", default=1)
def corpora(count: int, seed: int) -> None:
    """Build random corpora."""
    from .corpora import check_corpora

    click.echo(f"corpora, seed {seed}: {check_corpora(count, seed)}")


@main.command()
@click.option("--count", default=300)
@click.option("--seed", default=1)
def mixes(count: int, seed: int) -> None:
    """Verify random mixes that repeat documents."""
    from .mixes import check_mixes

    click.echo(f"mixes, seed {seed}: {check_mixes(count, seed)}")


if __name__ == "__main__":
    main()
