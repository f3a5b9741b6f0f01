"""Targets of `scripts/fuzz` for a moment, without coverage, and what its runs have found."""

import json
import random
import runpy
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings

from packprep.inspect.verify import verify

from .fuzz import Target, change_bytes, joined, read_everything, try_target
from .guided.inputs import INPUTS
from .guided.outputs import OUTPUTS, sound_outputs
from .kinds import write_arrow

TARGETS: dict[str, Target] = INPUTS | OUTPUTS
SCRIPT = Path(__file__).parents[2] / "scripts" / "checks" / "guided_fuzz.py"


def check(name: str, data: bytes, folder: Path) -> bool:
    folder.mkdir()
    return try_target(TARGETS[name], data, folder)


@pytest.mark.parametrize("name", TARGETS)
def test_sound_bytes_are_read_and_others_read_right_or_refused(name: str, tmp_path: Path) -> None:
    target, draw = TARGETS[name], random.Random(7)
    (tmp_path / "seeds").mkdir()
    seeds = list(target.seeds(tmp_path / "seeds"))
    read = [check(name, seed, tmp_path / f"seed-{number}") for number, seed in enumerate(seeds)]
    assert all(read)
    for number in range(min(200, settings().max_examples) // 4):
        mutate = draw.choice([change_bytes, target.mutate or change_bytes])
        check(name, mutate(draw.choice(seeds), draw), tmp_path / str(number))


def test_the_command_knows_every_target() -> None:
    assert {*runpy.run_path(str(SCRIPT))["NAMES"]} == {*TARGETS}


def _damaged_list() -> bytes:
    """An Arrow stream of a list whose offsets fall."""
    offsets = pa.py_buffer(struct.pack("<3i", 0, 5, 2))
    values = pa.array([1, 2, 3, 4, 5])
    array = pa.Array.from_buffers(pa.list_(pa.int64()), 2, [None, offsets], children=[values])
    return write_arrow(pa.table({"input_ids": array, "seq_lengths": array}))


def _index(change: Callable[[Any], object]) -> bytes:
    """The manifest of an index with a change of its data."""
    manifest = json.loads((sound_outputs() / "index" / "manifest.json").read_bytes())
    change(manifest["data"])
    return json.dumps(manifest).encode()


NESTED = b"[" * 100_000
# A target, the number in front, the bytes, and whether they are read: damaged facts beside token
# files are no harm.
FOUND: list[tuple[str, int | None, Any, bool]] = [
    ("template", None, b"{% break %}", False),
    ("template", None, b"{{ " + b"-" * 3000 + b"1 }}", False),
    ("report", 0, b'{"report_version": 1}', False),
    ("report", 0, b'{"report_version": 1, "documents_per_pack": {"p50": "1"}}', False),
    *(("receipt", 0, data, False) for data in (b"[[1e308, 1]]", NESTED)),
    *(("receipt", 1, data, False) for data in (NESTED, b'{"documents": "12", "parts": []}')),
    *(("receipt", number, NESTED, True) for number in (2, 3)),
    ("receipt", 2, b'{"tokenizer": {}, "sources": ["a"], "options": {}}', True),
    ("receipt", 3, b'{"tokens": ["a"], "source_bytes": 9}', False),
    ("receipt", 3, b'{"tokens": "a"}', False),
    ("saved", 1, _damaged_list(), False),
    ("saved", 0, NESTED, False),
    *(
        ("manifest", 0x0B, lambda facts, change=change: facts["index"].update(change), False)
        for change in (
            {"pad_id": "train"},
            {"pad_id": True},
            {"bos_id": 1 << 31},
            {"shards": [0.0]},
        )
    ),
    ("manifest", 0x0B, lambda facts: facts["sources"][0].update(first_document=1 << 63), False),
]


@pytest.mark.parametrize(("name", "number", "data", "is_read"), FOUND, ids=range(len(FOUND)))
def test_what_once_raised_another_error_is_read_or_refused(
    name: str, number: int | None, data: Any, is_read: bool, tmp_path: Path
) -> None:
    if callable(data):
        data = _index(data)
    content = data if number is None else joined(bytes([number]), data)
    assert check(name, content, tmp_path / "x") == is_read


@pytest.mark.parametrize("other", ["", "folder", "nowhere", "manifest.json", "/etc/hostname"])
def test_readers_of_outputs_of_which_a_file_is_gone_or_something_else_read_or_refuse(
    tmp_path: Path, other: str
) -> None:
    """A file is gone, or a folder or a link to this, in its place."""
    for name in ("plain", "split", "index"):
        whole = sound_outputs() / name
        for number, path in enumerate(sorted(whole.rglob("*.*"))):
            copy = Path(shutil.copytree(whole, tmp_path / f"{name}-{number}"))
            damaged = copy / path.relative_to(whole)
            damaged.unlink()
            if other == "folder":
                damaged.mkdir()
            elif other:
                damaged.symlink_to(other)
            read_everything(copy)
            assert not verify(copy).sound
