"""What interrupted builds differ by in the two editions: commands, layout of folders, readers."""

import importlib
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
import zstandard

from packprep.next.look.verify import verify
from packprep.next.read.formats import jsonl
from packprep.next.read.reading import splits
from packprep.next.run import local
from packprep.next.schemas.files import MANIFEST, Files
from packprep.next.schemas.manifest import read_manifest as read_second
from packprep.next.tokens import stage
from packprep.next.tokens.store import FACTS, read_entry, read_receipt
from packprep.next.write.output import JOB, NAMES, staging_of
from packprep.output.staging import staging_path
from packprep.tokens.store_entries import is_store
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.zoo import CHAT_TEMPLATE, chat_rows, pair_rows
from tests.helpers.zoo import NAMES as ZOO

from . import crash_checks, harness
from .crash_checks import OUT, STORE, Command
from .recording import Tree, write_tree

Steps = list[list[str]]  # commands, one after the other
KINDS: Mapping[str, Mapping[str, Any]] = {
    "jsonl": {},
    "jsonl.zst": {},
    "limit": {"limit": 50},
    "parquet": {},
    "chats": {"messages": "messages", "max_length": 256},
    "turns": {"messages": "messages", "turns": "each", "max_length": 256},
    "pairs": {"pairs": "prompt,chosen,rejected", "max_length": 128},
    "mix": {"weights": [2, 1], "max_tokens": 4000},
    "plan": {"columns": "plan"},
    "tokenize, pack": {},
}
"""Options of kinds of builds of the second edition; some are names of formats."""
_SMALL = {"max_length": 64, "holdout": 0.2, "window": "16KB", "shard_size": "30KB"}
_FEW = {"window": "40KB", "shard_size": "1MB"}
_TEXT_OF_A_SPLIT = 4000  # bytes; 16 MB otherwise
_CHATS = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}


@dataclass(frozen=True)
class Edition:
    """An edition.

    main: module of its command line. warm: imports all that a build needs. kinds: of builds. steps:
    commands of a kind, or of the default, for an output; their sources are made in the folder. few:
    with few files. data: facts that two whole outputs or stores with the same bytes share.
    stage_of: see `harness.stage_of`. staging_of: folder in which an output is made. read: reads an
    output or a store by all that reads it; AssertionError for damage. finished_entries: entries of
    stores in a tree, None if there is none.
    """

    main: str
    warm: Callable[[], None]
    kinds: Sequence[str]
    steps: Callable[[Path, str | None, bool], Callable[[Path], Steps]]
    data: Callable[[Path], object]
    stage_of: Callable[[Path], str]
    staging_of: Callable[[Path], Path]
    absent_or_complete: Callable[[Path], bool]
    commands: Callable[[Path, Path], dict[str, Command]]
    read: Callable[[Path], None]
    is_store: Callable[[Path], bool]
    finished_entries: Callable[[Tree], Tree | None]


def _first_steps(folder: Path, kind: str | None, few: bool) -> Callable[[Path], Steps]:
    arguments = harness.kind_of_build(folder, kind) if kind else harness.corpus(folder)
    arguments = harness.few_files(arguments) if few else arguments
    return lambda output: [[*arguments, "-o", str(output)]]


def _warm_second() -> None:
    """Import what a build needs, and let it make many small splits and pieces."""
    harness.warm()
    for name in ("build", "pack", "tokenize"):
        importlib.import_module(f"packprep.next.cli.{name}")
    importlib.import_module("packprep.next.chat.documents")
    splits.__defaults__ = (_TEXT_OF_A_SPLIT,)
    for module, name in ((stage, "SPLIT_BYTES"), (jsonl, "BLOCK"), (local, "LEAST")):
        setattr(module, name, _TEXT_OF_A_SPLIT)


def _second_inputs(
    folder: Path, kind: str | None, few: bool
) -> tuple[list[str], list[str], list[str]]:
    """Two files, options of tokens, and options of rows and of several windows and shards."""
    options, rows = KINDS[kind or "jsonl"], 40 if few else 120
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


def _second_steps(folder: Path, kind: str | None, few: bool) -> Callable[[Path], Steps]:
    files, tokens, packs = _second_inputs(folder, kind, few)
    if kind == "tokenize, pack":
        return lambda output: [
            ["tokenize", *files, *tokens, "-o", f"{output}.store"],
            ["pack", f"{output}.store", *packs, "-o", str(output), "-q"],
        ]
    build = ["build", *files, *tokens, *packs]
    if kind == "plan":
        return lambda output: [[*build, "-o", str(output), "--store", f"{output}.store"]]
    return lambda output: [[*build, "-o", str(output)]]


def _converted(file: Path, kind: str | None) -> Path:
    """A file of JSON lines, or its rows in another format."""
    if kind == "parquet":
        path = file.with_suffix(".parquet")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        table = datasets.Dataset.from_list(rows).data.table
        pq.write_table(table, path, row_group_size=8)
        return path
    if kind in ("jsonl.zst", "limit"):
        path = file.with_suffix(".jsonl.zst")
        path.write_bytes(zstandard.compress(file.read_bytes()))
        return path
    return file


def _second_commands(folder: Path, disk: Path) -> dict[str, Command]:
    out, store, made = ["-o", str(disk / OUT)], str(disk / STORE), dict[str, list[str]]()
    for kind in KINDS:
        (folder / kind).mkdir(exist_ok=True)
        files, tokens, packs = _second_inputs(folder / kind, kind, few=True)
        made[kind] = ["build", *files, *tokens, *packs, *out]
    del made["tokenize, pack"]

    def tokenize(place: str) -> list[str]:
        return ["tokenize", *files, *tokens, "-o", str(disk / place)]

    made["plan"] += ["--store", store]
    other = ["build", files[0], *tokens, *out, "--max-length", "32"]
    return {
        "tokenize": Command(tokenize(OUT), grows_store=True),
        "pack": Command(["pack", store, *packs, *out, "-q"], [tokenize(STORE)]),
        **{f"build of {kind}": Command(build) for kind, build in made.items()},
        "build with a store": Command([*made["jsonl"], "--store", store]),
        "overwrite": Command([*made["jsonl"], "--overwrite"], [other]),
    }


def _second_data(output: Path) -> object:
    if _is_second_store(output):
        entries = [read_entry(Files(path.parent)) for path in sorted(output.glob(f"*/{FACTS}"))]
        return [(entry.key, entry.facts, entry.files, entry.complete) for entry in entries]
    return read_second(Files(output)).data


def _second_stage_of(output: Path) -> str:
    staging = staging_of(output)
    if (output / MANIFEST).exists() and not (staging / JOB).exists():
        return "after"
    if (staging / MANIFEST).exists() or (staging / NAMES).exists():
        return "sign off"
    if any((staging / "shards").glob("*")):
        return "pack"
    stores = (staging / "tokens", *output.parent.glob(f"{output.name}.store/*"))
    return "tokenize" if any((store / FACTS).exists() for store in stores) else "before"


def _second_whole(output: Path) -> bool:
    return not output.exists() or verify(output) == []


def _read_second(output: Path) -> None:
    for path in output.glob("*/tokens-*.json"):
        assert read_receipt(Files(path.parent), path.name) is not None, (
            f"{path} is of no intact file"
        )
    if _is_second_store(output):
        return
    assert verify(output) == []
    rows = datasets.load_from_disk(str(output))
    for split, counts in read_second(Files(output)).splits.items():
        of_split = rows[split] if isinstance(rows, datasets.DatasetDict) else rows
        assert len(of_split) == counts["packs"]


def _is_second_store(output: Path) -> bool:
    return any(output.glob(f"*/{FACTS}"))


def _second_finished_entries(files: Tree) -> Tree | None:
    with tempfile.TemporaryDirectory() as folder:
        write_tree(files, Path(folder) / "tree")
        paths = (Path(folder) / "tree").glob(f"{OUT}/*/{FACTS}")
        whole = {f"{OUT}/{p.parent.name}" for p in paths if read_entry(Files(p.parent)).complete}
    return {name: files[name] for name in files if name.rpartition("/")[0] in whole} or None


EDITIONS = {
    "first": Edition(
        main=harness.MAIN,
        warm=harness.warm,
        kinds=ZOO,
        steps=_first_steps,
        data=crash_checks.data,
        stage_of=harness.stage_of,
        staging_of=staging_path,
        absent_or_complete=harness.absent_or_complete,
        commands=crash_checks.commands,
        read=crash_checks.read,
        is_store=is_store,
        finished_entries=crash_checks.finished_entries,
    ),
    "second": Edition(
        main="packprep.next.cli.main",
        warm=_warm_second,
        kinds=[*KINDS],
        steps=_second_steps,
        data=_second_data,
        stage_of=_second_stage_of,
        staging_of=staging_of,
        absent_or_complete=_second_whole,
        commands=_second_commands,
        read=_read_second,
        is_store=_is_second_store,
        finished_entries=_second_finished_entries,
    ),
}
