"""Targets of `scripts/fuzz` for a moment, without coverage, and what its runs have found."""

import json
import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from .guided.inputs import INPUTS
from .guided.outputs import OUTPUTS, sound_outputs
from .guided.run import NAMES
from .guided.target import Target, change_bytes, joined, try_target

TARGETS: dict[str, Target] = INPUTS | OUTPUTS
CASES = 30


def check(name: str, data: bytes, folder: Path) -> bool:
    folder.mkdir()
    return try_target(TARGETS[name], data, folder)


@pytest.mark.parametrize("name", NAMES)
def test_sound_bytes_are_read_and_others_read_right_or_refused(name: str, tmp_path: Path) -> None:
    target, draw = TARGETS[name], random.Random(7)
    (tmp_path / "seeds").mkdir()
    seeds = list(target.seeds(tmp_path / "seeds"))
    read = [check(name, seed, tmp_path / f"seed-{number}") for number, seed in enumerate(seeds)]
    assert all(read)
    for number in range(CASES):
        mutate = draw.choice([change_bytes, target.mutate or change_bytes])
        check(name, mutate(draw.choice(seeds), draw), tmp_path / str(number))


def test_the_command_knows_every_target() -> None:
    assert set(NAMES) == set(TARGETS)


def _damaged_list() -> bytes:
    """An Arrow stream of a list whose offsets fall."""
    offsets = pa.py_buffer(struct.pack("<3i", 0, 5, 2))
    values = pa.array([1, 2, 3, 4, 5])
    array = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [None, offsets], children=[values])
    batch = pa.record_batch([array, array], names=["input_ids", "seq_lengths"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


NESTED = b"[" * 100_000
FOUND: list[tuple[str, bytes]] = [
    ("template", b"{% break %}"),
    ("template", b"{{ " + b"-" * 3000 + b"1 }}"),
    ("report", joined(b"\x00", b'{"report_version": 1}')),
    ("report", joined(b"\x00", b'{"report_version": 1, "documents_per_pack": {"p50": "1"}}')),
    ("receipt", joined(b"\x00", b"[[1e308, 1]]")),
    ("receipt", joined(b"\x00", NESTED)),
    ("receipt", joined(b"\x01", NESTED)),
    ("receipt", joined(b"\x01", b'{"documents": "12", "parts": []}')),
    ("receipt", joined(b"\x03", b'{"tokens": ["a"], "source_bytes": 9}')),
    ("receipt", joined(b"\x03", b'{"tokens": "a"}')),
    ("saved", joined(b"\x01", _damaged_list())),
    ("saved", joined(b"\x00", NESTED)),
]


@pytest.mark.parametrize(("name", "data"), FOUND, ids=[name for name, _ in FOUND])
def test_what_once_raised_another_error_is_refused(name: str, data: bytes, tmp_path: Path) -> None:
    assert not check(name, data, tmp_path / "x")


def test_samples_at_a_path_of_endless_length_are_not_here(tmp_path: Path) -> None:
    assert check("export", joined(b"\x3c", b'["%s"]' % (b"x" * 300)), tmp_path / "x")


@pytest.mark.parametrize(
    "data",
    [
        joined(b"\x02", b'{"tokenizer": {}, "sources": ["a"], "options": {}}'),
        joined(b"\x02", NESTED),
        joined(b"\x03", NESTED),
    ],
    ids=["sources", "nested entry", "nested build"],
)
def test_token_files_are_sound_beside_damaged_facts_about_them(data: bytes, tmp_path: Path) -> None:
    assert check("receipt", data, tmp_path / "x")


@pytest.mark.parametrize(
    ("key", "value"),
    [("pad_id", "train"), ("bos_id", 1 << 31), ("pad_id", True), ("shards", [0.0])],
)
def test_an_index_with_ids_or_counts_of_another_type_is_refused(
    key: str, value: Any, tmp_path: Path
) -> None:
    manifest = json.loads((sound_outputs() / "index" / "manifest.json").read_bytes())
    manifest["data"]["index"][key] = value
    data = joined(b"\x0b", json.dumps(manifest).encode())
    assert not check("manifest", data, tmp_path / "x")


def test_a_manifest_with_a_number_larger_than_numpy_has_is_refused(tmp_path: Path) -> None:
    manifest = json.loads((sound_outputs() / "index" / "manifest.json").read_bytes())
    manifest["data"]["sources"][0]["first_document"] = 1 << 63
    data = joined(b"\x0b", json.dumps(manifest).encode())
    assert not check("manifest", data, tmp_path / "x")
