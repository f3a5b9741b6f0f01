"""Run commands on the inputs of inputs.py, and take down what their output holds.

The shards are read by pyarrow alone. Whatever their files and types, a column has one digest: of
the lengths of the packs and then all values, as little-endian int64, or float64.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import yaml

from packprep.cli.main import COMMANDS, main
from packprep.loaders import PackedLoader, PackedShards

Result = dict[str, Any]
Column = tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]  # lengths of packs, values
COLUMNS = {"input_ids": "tokens", "cu_seqlens": "boundaries", "seq_lengths": "boundaries"}
"""Names of the record for columns of shards; all others are their own. `hf` stores lengths."""
OF_THE_MACHINE = {"bytes", "peak_memory_bytes", "seconds", "sha256", "tokens_per_second"}
"""Figures of report.json that are not recorded; `bytes` are those of pyarrow."""
SIGNED = ("bos_id", "columns", "draw", "format_version", "ledger", "pad_id", "vocab_size")
OF_SOURCES = ("name", "first_row", "rows", "rows_of_pass", "drawn")
"""Facts of a manifest, and of its sources, that libraries do not change."""
SHOWN = {
    "show": ("show out --json", "show out --json --ids", "show out"),
    "report": ("report out", "report same more", "report out -o page.html"),
    "plan": (
        "plan out --json --max-length 200,400 --padding-of-batch 3",
        "plan out --max-length 24,300 --strategy best_fit,wrapped --overflow split,truncate "
        "--min-pack-tokens 40 --padding-of-batch 4 --global-batch-size 3",
        "plan out --recipe in/recipe.yaml --ranks 2",
    ),
}
"""Commands whose words are recorded, without those that `VARIES` with time and libraries."""
VARIES = r"[\d,.]+ tokens/s, [\d.]+ s|_fingerprint\W+\w+|<td class=\W+text\W+\d+\.\d+\.\d+"
GIVEN = {"tokenizer": "in/tiny", "max_length": 64, "engine": "hf", "num_proc": 1}
"""Options of every build that has no others."""


def started(folder: Path, inputs: Path, files: Mapping[str, bytes]) -> Path:
    """A new folder with `in/`, which only is read, and these files in `own/`."""
    folder.mkdir()
    (folder / "in").symlink_to(inputs.resolve())
    (folder / "own").mkdir()
    for name, content in files.items():
        path = folder / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def command(
    arguments: str, options: Mapping[str, Any], stdin: str = "", *, quiet: bool = True
) -> tuple[int, str, str]:
    """Run a command here: its exit code, the class of its error, and what it says.

    It is `build` if arguments begin with no command. options: of a build's YAML file; those that
    are None are left out. stdin: a file. quiet: a build prints its errors only.
    """
    given = shlex.split(arguments)
    if given[:1] == [] or given[0] not in (*COMMANDS, "bulid"):
        given = ["build", *given, *["-o", "out"] * ("-o" not in given)]
    if given[0] in ("build", "tokenize") and "-c" not in given:
        keys = {name: value for name, value in {**GIVEN, **options}.items() if value is not None}
        if given[0] == "tokenize":
            del keys["max_length"]
        Path("own.yaml").write_text(yaml.safe_dump(keys))
        given += ["-c", "own.yaml"]
    quietly = ["-q"] * (quiet and given[0] in ("build", "tokenize", "pack"))
    out, err = io.StringIO(), io.StringIO()
    text = io.TextIOWrapper(io.BytesIO(Path(stdin).read_bytes() if stdin else b""))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "argv", ["packprep", *given, *quietly]),
        mock.patch.object(sys, "stdin", text),
        mock.patch.dict(os.environ, COLUMNS="80"),
    ):
        try:
            main()
        except SystemExit as stopped:  # `main` ends while it handles the error that it prints
            error = stopped.__context__
            names = [] if error is None else [each.__name__ for each in type(error).__mro__]
            kind = "ConfigError" if "ClickException" in names else "".join(names[:1])
            return int(stopped.code or 0), kind, err.getvalue() or out.getvalue()
    return 0, "", out.getvalue()


def result_of(out: Path, printed: str) -> Result:
    """Figures of an output, and digests of its columns, batches, facts, and what commands say.

    printed: by its build.
    """
    report, splits = json.loads((out / "report.json").read_bytes()), {}
    for split in report["splits"]:
        columns = read_columns(out, split)
        digests = {name: digest(*column) for name, column in sorted(columns.items())}
        digests["batches"] = _batches(out, split, columns)
        splits[split] = {"packs": len(columns["tokens"][0]), "columns": digests}
    found = json.loads(command(f"report {out} --json", {})[2])
    said: dict[str, Any] = {name: found[name] for name in ("findings", "options")}
    signed = json.loads((out / "manifest.json").read_bytes())["data"]
    said["manifest"] = [{name: signed[name] for name in SIGNED}, (out / "build.yaml").read_text()]
    said["manifest"] += [[each[name] for name in OF_SOURCES] for each in signed["sources"]]
    said["state"] = [path.read_text() for path in sorted(out.rglob("state.json"))]
    same = {**report, "bytes": 1, "peak_memory_bytes": 1, "seconds": {"total": 1}}
    more = json.loads(json.dumps(same), parse_int=lambda number: int(number) + 1)
    for name, values in (("same", same), ("more", more)):
        Path(name).write_text(json.dumps({**values, "report_version": 2, "tokens_per_second": 1}))
    for name, lines in SHOWN.items():
        said[name] = [command(line, {}) for line in lines]
    said["report"] += [Path("page.html").read_text(), printed]
    texts = {name: json.dumps(each).replace(str(Path.cwd()), "") for name, each in said.items()}
    words = {name: _sha256(re.sub(VARIES, "", text)) for name, text in texts.items()}
    return {"splits": splits, "report": figures(report), **words}


def _batches(out: Path, split: str, columns: Iterable[str]) -> str:
    """Digest of the batches of the second of two ranks, in their order."""
    shards = PackedShards(out, split=split)
    loader = PackedLoader(
        shards,
        packs_per_batch=2,
        seed=5,
        rank=1,
        world_size=2,
        labels="shifted",
        remainder="fill",
        columns=sorted({*shards.names("token", "segment")} & {*columns}),
        sides="both" if "pair_sides" in columns else None,
    )
    made = [
        values.tolist()
        for batch in loader
        for values in (batch.tokens, batch.cu_seqlens, batch.labels, *batch.extra.values())
    ]
    return _sha256(json.dumps(made))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def digest(lengths: Any, values: Any) -> str:
    """sha256 of the lengths and the values of a column."""
    dtype = "<f8" if values.dtype.kind == "f" else "<i8"
    content = lengths.astype("<i8").tobytes() + values.astype(dtype).tobytes()
    return hashlib.sha256(content).hexdigest()


def read_columns(out: Path, split: str) -> dict[str, Column]:
    """The columns of a split, by their names in the record, over all packs in order.

    A plan has no tokens: its packs are those that the loaders give.
    """
    folder = out / split if (out / split).is_dir() else out
    state = json.loads((folder / "state.json").read_bytes())
    tables = []
    for entry in state["_data_files"]:
        with pa.memory_map(str(folder / entry["filename"])) as file:
            tables.append(pa.ipc.open_stream(file).read_all())
    table = pa.concat_tables(tables)
    if {"tokens", "input_ids"}.isdisjoint(table.column_names):
        return _read_plan(out, split)
    columns = {}
    for name in table.column_names:
        lists: Any = table[name].combine_chunks()
        lengths = lists.value_lengths().to_numpy(zero_copy_only=False)
        values = lists.flatten().to_numpy(zero_copy_only=False)
        if name == "seq_lengths":
            lengths, values = _boundaries(lengths, values)
        columns[COLUMNS.get(name, name)] = (lengths, values)
    return columns


def _boundaries(lengths: Any, values: Any) -> Column:
    """Lengths of segments as their ends, from 0."""
    parts = np.split(values.astype(np.int64), np.cumsum(lengths)[:-1])
    ends = [np.concatenate([[0], np.cumsum(part)]) for part in parts]
    return lengths + 1, np.concatenate(ends)


def _read_plan(out: Path, split: str) -> dict[str, Column]:
    shards = PackedShards(out, split=split)
    packs = [{name: values.copy() for name, values in pack.items()} for pack in shards]
    return {
        COLUMNS.get(name, name): (
            np.array([len(pack[name]) for pack in packs]),
            np.concatenate([pack[name] for pack in packs]),
        )
        for name in packs[0]
    }


def figures(report: Mapping[str, Any]) -> Result:
    """The recorded numbers of a report."""
    kept = {name: report[name] for name in report.keys() - OF_THE_MACHINE}
    kept["sources"] = [{**each, "name": Path(each["name"]).name} for each in report["sources"]]
    rounded: Result = json.loads(json.dumps(kept), parse_float=lambda text: round(float(text), 9))
    return rounded


def differences(recorded: Any, result: Any, place: str = "") -> Iterator[str]:
    """Places where a result differs from the record: "train tokens", "report packs: 3, not 4"."""
    if isinstance(recorded, Mapping) and isinstance(result, Mapping):
        for name in {**recorded, **result}:
            where = f"{place} {name}".strip() if name not in ("splits", "columns") else place
            yield from differences(recorded.get(name), result.get(name), where)
    elif recorded != result:
        yield f"{place}: {json.dumps(result)[:100]}, not {json.dumps(recorded)[:100]}"
