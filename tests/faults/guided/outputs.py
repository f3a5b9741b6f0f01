"""Targets that are outputs: manifests, reports, receipts, shards, indexes, exports.

`verify` must never call an output sound whose packs differ. A manifest is damaged both as it is and
with the digest of its new values, so that its values are what must be refused.

Each input is a number and a file: the number chooses the output that gets the file.
"""

import atexit
import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from packprep.exports.export import export
from packprep.inspect.report_file import read_report
from packprep.inspect.stats import source_rows
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.output.progress import build_progress
from packprep.reports.card import dataset_card
from packprep.reports.closing import table
from packprep.reports.compare import compare_reports
from packprep.reports.facts import Facts, gather
from packprep.reports.page import render
from packprep.schemas import canonical_json, digest_of, read_manifest
from packprep.schemas.canonical import file_xxh3
from packprep.support.errors import ConfigError
from packprep.tokens.store import committed, stored
from packprep.tokens.store_entries import StoreEntry
from tests.faults.fuzz import (
    Target,
    change_json,
    change_part,
    joined,
    other_shard,
    parted,
    read_everything,
    sign,
    write_signed,
)
from tests.helpers.command import done
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl

_OUTPUTS = ("plain", "split", "hf", "index")
_EXPORTS = ("npy", "mds", "parquet", "trl", "megatron")
_SIGNED = 8  # of the number in front of the bytes; lower bits choose an output
_SAVED = ("state.json", "data.arrow")
_RECEIPTS = ("files.json", "unit-000000-000.json", "entry.json", "build.json")


@cache
def sound_outputs() -> Path:
    """A folder with sound outputs of every shape, until the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="packprep-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer = save_tokenizer(folder / "tokenizer")
    rows = [{"ids": [5, 6, 7 + row, 8], "labels": [-100, 6, 7 + row, 8]} for row in range(8)]
    write_jsonl(folder / "text.jsonl", texts(12))
    write_jsonl(folder / "ids.jsonl", rows)
    labelled = ("--input-ids-column", "ids", "--labels-column", "labels", "--holdout", "0.4")
    store = folder / "store"
    text = ("text.jsonl", "--max-length", "64")
    for name, options in {
        "plain": (*text, "--keep-tokens", store),
        "split": ("ids.jsonl", "--max-length", "16", *labelled),
        "hf": (*text, "--names", "hf"),
        "index": (*text, "--materialize", "index"),
    }.items():
        source, *more = options
        given = ("-o", folder / name, "--tokenizer", tokenizer, "--engine", "hf", "-q")
        done("build", folder / str(source), *more, *given)
    for name in _EXPORTS:
        export(folder / ("plain" if name == "megatron" else "split"), str(folder / name), name)
    (entry,) = (path for path in store.iterdir() if path.is_dir())
    shutil.copytree(entry, folder / "entry")
    return folder


def _copied(number: int, folder: Path, names: Sequence[str] = _OUTPUTS) -> tuple[Path, Path]:
    """A sound output, and a copy of it to damage."""
    sound = sound_outputs() / names[number % _SIGNED % len(names)]
    return sound, Path(shutil.copytree(sound, folder / "out"))


def _number(data: bytes) -> int:
    return data[0] if data else 0


def _packs(directory: Path) -> list[Any]:
    """Columns of all packs of all splits, in order."""
    return [
        (split, *((name, values.tolist()) for name, values in sorted(pack.columns.items())))
        for split in read_manifest(directory).splits
        for pack in PackedShards(directory, split=split)
    ]


def _judge(out: Path, sound: Path | None) -> bool:
    """True if `verify` calls an output sound. It must then be read, with the packs of `sound`."""
    verdict = verify(out)
    for finding in verdict.findings:
        assert "\n" not in str(finding), str(finding)
    outcome = read_everything(out)
    if verdict.sound:
        assert outcome == "read", "verify calls it sound, and readers refuse it"
        assert sound is None or _packs(out) == _packs(sound), "sound, with other packs"
    return verdict.sound


def _sign_all(out: Path) -> None:
    """Digests of all files as they are now, in the manifest and its table of token files."""
    path = out / "manifest.json"
    value = json.loads(path.read_bytes())
    for entry in value["data"].get("index", {}).get("files", ()):
        file = out / "tokens" / entry["path"]
        entry |= {"bytes": file.stat().st_size, "xxh3": file_xxh3(file)}
    write_signed(path, value)
    sign(out)


# Files of an output ------------------------------------------------------------------------


def _check_manifest(data: bytes, folder: Path) -> bool:
    kind, content = parted(data, 2)
    sound, out = _copied(_number(kind), folder)
    (out / "manifest.json").write_bytes(content)
    if _number(kind) & _SIGNED:
        with contextlib.suppress(ValueError, RecursionError):
            write_signed(out / "manifest.json", json.loads(content))
    return _judge(out, sound)


def _check_report(data: bytes, folder: Path) -> bool:
    kind, content = parted(data, 2)
    _, out = _copied(_number(kind), folder)
    (out / "report.json").write_bytes(content)
    sign(out)
    verify(out)
    report = read_report(out)
    facts = replace(_facts(_number(kind)), report=report)
    assert render(facts)
    assert table(report)
    with contextlib.suppress(ConfigError):  # an index has none
        assert dataset_card(out, "name")
    compare_reports(report, report)
    source_rows(report)
    return True


@cache
def _facts(number: int) -> Facts:
    return gather(sound_outputs() / _OUTPUTS[number % _SIGNED % len(_OUTPUTS)])


def _check_shard(data: bytes, folder: Path) -> bool:
    """A shard, or a token file of an index. With right digests other packs may be sound."""
    kind, content = parted(data, 2)
    sound, out = _copied(_number(kind), folder)
    files = sorted(out.rglob("*.arrow"))
    path = files[(_number(kind) >> 4) % len(files)]
    path.write_bytes(content)
    if _number(kind) & _SIGNED:
        _sign_all(out)
        return _judge(out, None)
    return _judge(out, sound)


def _check_export(data: bytes, folder: Path) -> bool:
    kind, content = parted(data, 2)
    sound, out = _copied(_number(kind), folder, _EXPORTS)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    path = files[(_number(kind) >> 4) % len(files)]
    is_same = path.read_bytes() == content
    path.write_bytes(content)
    if _number(kind) & _SIGNED:
        _sign_export(out)
        return verify(out).sound
    is_sound = verify(out).sound
    assert is_sound == is_same, f"{path.relative_to(out)} of {sound.name} is damaged and sound"
    return is_sound


def _sign_export(out: Path) -> None:
    path = out / "export.json"
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError, RecursionError):
        value = json.loads(path.read_bytes())
        for name, entry in value["data"]["files"].items():
            file = out / name
            entry |= {"bytes": file.stat().st_size, "xxh3_128": file_xxh3(file)}
        value["sha256"] = digest_of({"data": value["data"], "run": value["run"]})
        path.write_bytes(canonical_json(value))


def _check_saved(data: bytes, folder: Path) -> bool:
    """Packs that TRL saved, without digests: nothing to compare, but no other error."""
    kind, content = parted(data, 2)
    _write_saved(folder / "x")
    (folder / "x" / _SAVED[_number(kind) % len(_SAVED)]).write_bytes(content)
    return verify(folder / "x", vocab_size=100).sound


def _write_saved(folder: Path) -> None:
    columns = {
        "input_ids": [[5, 6, 7, 8, 9], [10, 11, 12], [13]],
        "seq_lengths": [[3, 2], [2, 1], [1]],
        "labels": [[-100, 6, 7, -100, 9], [-100, 11, -100], [-100]],
    }
    table = pa.table(columns)
    folder.mkdir(exist_ok=True)
    with pa.ipc.new_stream(str(folder / "data.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))


def _check_receipt(data: bytes, folder: Path) -> bool:
    """A receipt of token files or of a build: damaged is as absent, never an error."""
    kind, content = parted(data, 2)
    name = _RECEIPTS[_number(kind) % len(_RECEIPTS)]
    entry = Path(shutil.copytree(sound_outputs() / "entry", folder / "out.incomplete"))
    (entry / name).write_bytes(content)
    whole = stored(entry)
    committed(entry)
    facts = StoreEntry(entry)
    assert facts.as_dict()
    assert (not [*facts.faults()]) == (whole is not None)
    if name == "build.json":
        with contextlib.suppress(OSError):  # the command line makes a sentence of it
            build_progress(folder / "out")
    return whole is not None


def _seeds_of(files: Sequence[tuple[int, Path]]) -> list[bytes]:
    return [joined(bytes([number]), path.read_bytes()) for number, path in files]


def _json_seeds(name: str) -> Callable[[Path], list[bytes]]:
    def seeds(_: Path) -> list[bytes]:
        paths = [sound_outputs() / output / name for output in _OUTPUTS]
        return _seeds_of([(bit + n, path) for bit in (0, _SIGNED) for n, path in enumerate(paths)])

    return seeds


def _file_seeds(names: Sequence[str], pattern: str) -> Callable[[Path], list[bytes]]:
    def seeds(_: Path) -> list[bytes]:
        files = []
        for number, name in enumerate(names):
            found = sorted((sound_outputs() / name).rglob(pattern))
            paths = [path for path in found if path.is_file()][:16]
            for place, path in enumerate(paths):
                files += [(bit + number + 16 * place, path) for bit in (0, _SIGNED)]
        return _seeds_of(files)

    return seeds


def _saved_seeds(folder: Path) -> list[bytes]:
    _write_saved(folder)
    return _seeds_of([(number, folder / name) for number, name in enumerate(_SAVED)])


def _receipt_seeds(folder: Path) -> list[bytes]:
    entry = sound_outputs() / "entry"
    build = {"tokens": "tokens", "source_bytes": 9, "identity": "0" * 64}
    (folder / "build.json").write_text(json.dumps(build))
    paths = [(entry if (entry / name).exists() else folder) / name for name in _RECEIPTS]
    return _seeds_of([*enumerate(paths)])


_JSON = change_part(2, change_json)
OUTPUTS = {
    "manifest": Target(seeds=_json_seeds("manifest.json"), check=_check_manifest, mutate=_JSON),
    "report": Target(seeds=_json_seeds("report.json"), check=_check_report, mutate=_JSON),
    "receipt": Target(seeds=_receipt_seeds, check=_check_receipt, mutate=_JSON),
    "shard": Target(
        seeds=_file_seeds(_OUTPUTS, "*.arrow"),
        check=_check_shard,
        mutate=change_part(2, other_shard),
    ),
    "export": Target(seeds=_file_seeds(_EXPORTS, "*"), check=_check_export, mutate=_JSON),
    "saved": Target(seeds=_saved_seeds, check=_check_saved, mutate=_JSON),
}
