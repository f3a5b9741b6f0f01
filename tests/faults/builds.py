"""Builds to interrupt: their commands, the stage they are in, and readers of what they leave."""

import importlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
import zstandard

from packprep.chat import documents  # noqa: F401 (so that forks have it)
from packprep.look.verify import verify
from packprep.read.formats import jsonl
from packprep.read.reading import splits
from packprep.run import local
from packprep.schemas.files import MANIFEST, Files
from packprep.schemas.manifest import read_manifest
from packprep.tokens import stage
from packprep.tokens.store import FACTS, read_entry, read_receipt
from packprep.write.output import JOB, NAMES, staging_of
from tests.helpers.corpus import (
    CHAT_TEMPLATE,
    chat_rows,
    pair_rows,
    save_tokenizer,
    texts,
    write_jsonl,
)

from .recording import Tree, write_tree

STAGES = ("tokenize", "pack", "sign off")
KINDS: Mapping[str, Mapping[str, Any]] = {
    "jsonl": {},
    "jsonl.zst": {},
    "limit": {"limit": 50},
    "parquet": {},
    "turns": {"messages": "messages", "turns": "each", "max_length": 256},
    "pairs": {"pairs": "prompt,chosen,rejected", "max_length": 128},
    "mix": {"weights": [2, 1], "max_tokens": 4000},
    "plan": {"columns": "plan"},
    "tokenize, pack": {},
}
"""Options of kinds of builds; some are names of formats."""
_SMALL = {"max_length": 64, "holdout": 0.2, "window": "16KB", "shard_size": "30KB"}
_FEW = {"window": "40KB", "shard_size": "1MB"}
_TEXT_OF_A_SPLIT = 4000  # bytes; 16 MB otherwise
_CHATS = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}


def warm() -> None:
    """Import what a build needs, so that a fork has it, and make splits and pieces small."""
    for name in ("build", "pack", "tokenize"):
        importlib.import_module(f"packprep.cli.{name}")
    splits.__defaults__ = (_TEXT_OF_A_SPLIT,)
    for module, name in ((stage, "SPLIT_BYTES"), (jsonl, "BLOCK"), (local, "LEAST")):
        assert hasattr(module, name)
        setattr(module, name, _TEXT_OF_A_SPLIT)


def inputs(folder: Path, kind: str, few: bool) -> tuple[list[str], list[str], list[str]]:
    """Two files, options of tokens, and options of rows and of several windows and shards.

    few: with few files, so that there are few calls.
    """
    options, rows = KINDS[kind], 40 if few else 120
    made: list[list[Any]] = [[*texts(rows, seed=seed)] for seed in (1, 2)]
    if "messages" in options:
        made = [chat_rows(rows), chat_rows(rows // 2)]
    elif "pairs" in options:
        made = [pair_rows(rows), pair_rows(rows // 2)]
    files = [
        str(_converted(write_jsonl(folder / f"{name}.jsonl", each), kind))
        for name, each in zip("ab", made, strict=True)
    ]
    (folder / "packs.yaml").write_text(json.dumps(_SMALL | (_FEW if few else {}) | {**options}))
    tokens = ["--tokenizer", str(save_tokenizer(folder / "tok", config=_CHATS)), "-q"]
    return files, tokens, ["-c", str(folder / "packs.yaml")]


def _converted(file: Path, kind: str) -> Path:
    """A file of JSON lines, or its rows in another format."""
    if kind == "parquet":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        table = datasets.Dataset.from_list(rows).data.table
        pq.write_table(table, file.with_suffix(".parquet"), row_group_size=8)
        return file.with_suffix(".parquet")
    if kind in ("jsonl.zst", "limit"):
        path = file.with_suffix(".jsonl.zst")
        path.write_bytes(zstandard.compress(file.read_bytes()))
        return path
    return file


def steps(
    folder: Path, kind: str, *, few: bool = False
) -> Callable[[Path], Sequence[Sequence[str]]]:
    """Commands of a kind of build for an output, one after the other."""
    files, tokens, packs = inputs(folder, kind, few)
    if kind == "tokenize, pack":
        return lambda output: [
            ["tokenize", *files, *tokens, "-o", f"{output}.store"],
            ["pack", f"{output}.store", *packs, "-o", str(output), "-q"],
        ]
    build = ["build", *files, *tokens, *packs]
    if kind == "plan":
        return lambda output: [[*build, "-o", str(output), "--store", f"{output}.store"]]
    return lambda output: [[*build, "-o", str(output)]]


def stage_of(output: Path) -> str:
    """One of STAGES, "before" anything, or "after" the output was there."""
    staging = staging_of(output)
    if (output / MANIFEST).exists() and not (staging / JOB).exists():
        return "after"
    if (staging / MANIFEST).exists() or (staging / NAMES).exists():
        return "sign off"
    if any((staging / "shards").glob("*")):
        return "pack"
    stores = (staging / "tokens", *output.parent.glob(f"{output.name}.store/*"))
    return "tokenize" if any((store / FACTS).exists() for store in stores) else "before"


def is_left(output: Path) -> bool:
    """True if the folder in which an output was made, or a file that was begun, is left."""
    return staging_of(output).exists() or any(output.parent.rglob("*.tmp"))


def is_store(output: Path) -> bool:
    return any(output.glob(f"*/{FACTS}"))


def absent_or_complete(output: Path) -> bool:
    return not output.exists() or verify(output) == []


def data(output: Path) -> object:
    """Facts that two whole outputs or stores with the same bytes share."""
    if is_store(output):
        entries = [read_entry(Files(path.parent)) for path in sorted(output.glob(f"*/{FACTS}"))]
        return [(entry.key, entry.facts, entry.files, entry.complete) for entry in entries]
    return read_manifest(Files(output)).data


def read(output: Path) -> None:
    """Read an output or a store by all that reads it. AssertionError for damage."""
    for path in output.glob("*/tokens-*.json"):
        receipt = read_receipt(Files(path.parent), path.name)
        assert receipt is not None, f"{path} is of no intact file"
    if is_store(output):
        return
    assert verify(output) == []
    rows = datasets.load_from_disk(str(output))
    for split, counts in read_manifest(Files(output)).splits.items():
        of_split = rows[split] if isinstance(rows, datasets.DatasetDict) else rows
        assert len(of_split) == counts["packs"]


def finished_entries(files: Tree, store: str) -> Tree | None:
    """The finished entries of a store in a tree; None if there is none."""
    with tempfile.TemporaryDirectory() as folder:
        write_tree(files, Path(folder) / "tree")
        paths = (Path(folder) / "tree").glob(f"{store}/*/{FACTS}")
        whole = {f"{store}/{p.parent.name}" for p in paths if read_entry(Files(p.parent)).complete}
    return {name: files[name] for name in files if name.rpartition("/")[0] in whole} or None
