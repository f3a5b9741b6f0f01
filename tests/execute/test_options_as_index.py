"""Every option of a build, as an index: it reads as the shards of the same build.

The table has a row for each field of BuildConfig, and a case for each value that a field names. A
new option without a case fails here.
"""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import datasets
import numpy as np
import pytest

from packprep import BuildConfig, build
from packprep.config.options import Options
from packprep.execute import worker_pool
from packprep.execute.pipeline import build_share
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from packprep.support.errors import ConfigError
from tests.chat.test_turn_builds import SMALL, thoughtful
from tests.helpers import warm
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.errors import refused

FIELDS = {field.name: field for field in fields(Options)}


class Case(NamedTuple):
    """A build. rows: files that it reads. before: options of an earlier build at the same place."""

    rows: str
    options: dict[str, Any]
    before: dict[str, Any] | None = None


def ids_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Token ids, which begin alike in four rows each, with a value for each row and token."""
    rows = []
    for row in range(count):
        size = 3 + (row * 13 + seed) % 31
        ids = [(row // 4 * 7 + place) % 300 + 3 for place in range(size)] + [row % 300 + 3]
        mask = [int(place > 2) for place in range(size + 1)]
        labels = [token if trained else -100 for token, trained in zip(ids, mask, strict=True)]
        by_token = {"ids": ids, "mask": mask, "labels": labels, "weights": [0.5] * len(ids)}
        rows.append(by_token | {"quality": row / 8, "set": row % 2, "prompt": row // 4})
    return rows


def pair_rows(count: int) -> list[dict[str, Any]]:
    sides = {"chosen": 1, "rejected": 3}
    return [
        {side: [row + 3] * (row % 5 + 2) + [more] for side, more in sides.items()}
        | {"start": [7, 8, row + 3], "set": row % 2, "prompt": row // 3}
        for row in range(count)
    ]


def text_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    return [
        {"text": text, "title": f"</s> title {row}", "set": row % 2, "quality": row}
        for row, text in enumerate(texts(count, seed))
    ]


def asked_rows(count: int) -> list[dict[str, Any]]:
    return [{"question": f"what is {row}", "answer": f"it is {row} " * 3} for row in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sources, each in two files, and a tokenizer."""
    folder = tmp_path_factory.mktemp("sources")
    side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": SMALL}
    save_tokenizer(folder / "tokenizer", config=side)
    (folder / "template.jinja").write_text(SMALL)
    rows: dict[str, list[dict[str, Any]]] = {
        "text": text_rows(24),
        "ids": ids_rows(24),
        "pairs": pair_rows(14),
        "chat": thoughtful(6),
        "asked": asked_rows(12),
        "bad": [*text_rows(12), {"text": None}],
    }
    for kind, of_kind in rows.items():
        half = len(of_kind) // 2
        write_jsonl(folder / f"{kind}-a.jsonl", of_kind[:half])
        write_jsonl(folder / f"{kind}-b.jsonl", of_kind[half:])
    for name in ("a", "b"):
        (folder / f"lines-{name}.txt").write_text("a line\nanother one\n\na paragraph\n" * 8)
        saved = datasets.Dataset.from_list(text_rows(12, seed=ord(name)))
        datasets.DatasetDict(part=saved).save_to_disk(folder / f"saved-{name}")
    return folder


ENDS = {"text": ".jsonl", "lines": ".txt", "saved": ""}
BASES: dict[str, dict[str, Any]] = {
    "text": {},
    "lines": {},
    "saved": {"split": "part"},
    "bad": {"on_error": "skip"},
    "ids": {"input_ids_column": "ids", "vocab_size": 400, "loss_mask_column": "mask"},
    "pairs": {
        "input_ids_column": "auto",
        "vocab_size": 400,
        "pair_columns": ("chosen", "rejected"),
        "overflow": "truncate",
    },
    "chat": {"messages_column": "messages", "max_length": 256},
    "asked": {"prompt_column": "question", "response_column": "answer"},
}
"""Options of all builds of these rows."""
TREES = {"share_prefixes": True, "min_shared": 2}
SPLIT = {"stride": 5, "max_length": 16}

CASES: dict[str, list[Case]] = {
    "split": [Case("saved", {})],
    "text_column": [Case("text", {"text_column": "title"})],
    "text_template": [Case("text", {"text_template": "{title}: {text}"})],
    "messages_column": [Case("chat", {})],
    "prompt_column": [Case("asked", {}), Case("pairs", {"prompt_column": "start"})],
    "response_column": [Case("asked", {})],
    "pair_columns": [Case("pairs", {}), Case("pairs", TREES)],
    "input_ids_column": [Case("ids", {})],
    "labels_column": [Case("ids", {"labels_column": "labels", "loss_mask_column": None})],
    "loss_mask_column": [Case("ids", {})],
    "boundaries": [Case("ids", {"boundaries": "eos:9"})],
    "carry": [
        Case("ids", {"carry": ("weights", "quality:float64", "set:int8")}),
        Case("ids", {"carry": ("weights", "quality"), **TREES, "group_prefix": "prompt"}),
    ],
    "sample_by": [Case("lines", {"sample_by": by}) for by in ("document", "paragraph", "line")],
    "limit": [Case("text", {"limit": 7})],
    "max_tokens": [Case("text", {"max_tokens": 60, "unit_size": 400})],
    "weights": [Case("text", {"weights": (3, 1)})],
    "max_epochs": [Case("text", {"weights": (3, 1), "max_epochs": 2.5})],
    "on_error": [Case("bad", {}), Case("text", {"on_error": "stop"})],
    "max_row_size": [Case("text", {"max_row_size": "1MB"})],
    "unit_size": [Case("text", {"unit_size": 300})],
    "bos": [Case("text", {"bos": "</s>"})],
    "eos": [Case("text", {"eos": "none"})],
    "parse_special_tokens": [
        Case("text", {"parse_special_tokens": True, "text_column": "title"}),
    ],
    "verify_engine": [Case("text", {"verify_engine": 1.0})],
    "chat_template": [Case("chat", {"chat_template": "template.jinja"})],
    "template_date": [Case("chat", {"template_date": "2024-01-02"})],
    "template_variables": [Case("chat", {"template_variables": '{"enable_thinking": false}'})],
    "train_on": [Case("asked", {"train_on": turns}) for turns in ("assistant", "last-turn", "all")],
    "train_fields": [Case("chat", {"train_fields": "content", "turns": "each"})],
    "turns": [
        *(Case("chat", {"turns": turns}) for turns in ("row", "each", "auto")),
        Case("chat", {"turns": "each", **TREES}),
    ],
    "max_turns": [Case("chat", {"turns": "each", "max_turns": 2})],
    "vocab_size": [Case("ids", {})],
    "truncate_at": [Case("text", {"truncate_at": "dog"})],
    "keep_tokens": [Case("text", {"keep_tokens": "store"})],
    "max_length": [Case("text", {"max_length": 7}), Case("ids", {"max_length": 4096})],
    "strategy": [
        Case("ids", {"strategy": strategy})
        for strategy in get_args(get_type_hints(BuildConfig)["strategy"])
    ],
    "overflow": [
        Case("ids", {"overflow": overflow, "max_length": 48 if overflow == "error" else 16})
        for overflow in ("split", "truncate", "drop", "error")
    ],
    "stride": [Case("ids", SPLIT), Case("text", {**SPLIT, **TREES})],
    "truncation_side": [
        Case("ids", {"overflow": "truncate", "truncation_side": side, "max_length": 8})
        for side in ("right", "left", "balanced")
    ],
    "continuation_bos": [Case("text", {**SPLIT, "continuation_bos": True})],
    "train_overlap": [Case("ids", {**SPLIT, "train_overlap": True})],
    "min_loss_tokens": [Case("ids", {"min_loss_tokens": 9})],
    "min_document_tokens": [Case("ids", {"min_document_tokens": 9})],
    "max_document_tokens": [Case("ids", {"max_document_tokens": 20})],
    "min_pack_tokens": [
        Case("ids", {"min_pack_tokens": 60}),
        Case("pairs", {"min_pack_tokens": 50, **TREES}),
    ],
    "window": [Case("text", {"unit_size": 300, "window": 900})],
    "share_prefixes": [Case("pairs", TREES)],
    "min_shared": [Case("pairs", {**TREES, "min_shared": 1})],
    "group_prefix": [
        Case("ids", {**TREES, "group_prefix": "prompt"}),
        Case("pairs", {**TREES, "group_prefix": "prompt", "max_length": 128}),
    ],
    "max_segments_per_pack": [
        Case("ids", {"max_segments_per_pack": 2}),
        Case("ids", {"max_segments_per_pack": 4, **TREES, "group_prefix": "prompt"}),
        Case("chat", {"max_segments_per_pack": 2, **TREES, "turns": "each"}),
    ],
    "pad_segment_to_multiple": [Case("ids", {"pad_segment_to_multiple": 8})],
    "group_column": [
        Case("text", {"group_column": "set"}),
        Case("pairs", {"group_column": "set", **TREES}),
        Case("ids", {"group_column": "set", **TREES, "group_prefix": "prompt"}),
        Case("ids", {"group_column": "set", "epochs": 2, "repack": True}),
    ],
    "num_packs": [Case("ids", {"strategy": "balanced", "num_packs": 14})],
    "shuffle_documents": [Case("ids", {"strategy": "stream", "shuffle_documents": True})],
    "epochs": [Case("ids", {"epochs": 3, "repack": True})],
    "repack": [Case("text", {"epochs": 2, "repack": True, "strategy": "wrapped"})],
    "order": [
        Case("ids", {"order": order}) for order in ("shuffle", "input", "length", "balanced")
    ],
    "seed": [Case("ids", {"seed": 5})],
    "balance_ranks": [Case("ids", {"order": "balanced", "balance_ranks": 2})],
    "attention_cost": [Case("ids", {"order": "balanced", "attention_cost": "1,1"})],
    "packs_multiple_of": [Case("ids", {"packs_multiple_of": 4})],
    "remainder": [
        Case(kind, {"packs_multiple_of": 2, "remainder": remainder, **more})
        for kind in ("ids", "pairs")
        for remainder in ("drop", "fill")
        for more in ({}, TREES)
    ],
    "columns": [
        Case(kind, {"columns": columns, "packs_multiple_of": 3, "remainder": "fill", **more})
        for columns in ((), ("position_ids",), ("document_ids",), ("document_starts",))
        for kind, more in (("ids", {}), ("pairs", TREES))
    ],
    "names": [Case("ids", {"names": names}) for names in ("packprep", "hf")],
    "token_type": [Case("ids", {"token_type": kind}) for kind in ("auto", "int32", "uint16")],
    "shard_size": [Case("text", {"shard_size": 900})],
    "holdout": [Case("ids", {"holdout": 0.3, "seed": 1}), Case("text", {"holdout": 0.3})],
    "num_proc": [Case("text", {"num_proc": 3, "unit_size": 300})],
    "max_memory": [Case("text", {"max_memory": "1GB"})],
    "isolate": [Case("text", {"isolate": True})],
    "executor": [Case("text", {"executor": "array", "num_tasks": 2, "unit_size": 300})],
    "overwrite": [Case("ids", {"overwrite": True}, before={"seed": 1})],
    "append": [Case("ids", {"append": True}, before={"append": False, "sources": 1})],
}
ELSEWHERE = {
    "sources": "every case has them",
    "output": "every case has one",
    "tokenizer": "every case of text has one",
    "materialize": "every case has both of its values; auto is one of them",
    "name": "only the hub has configurations",
    "revision": "only the hub has revisions",
    "tokenizer_revision": "only the hub has revisions",
    "engine": "all engines give the same ids, which tests/engines compares",
    "executor ray": "needs ray; tests/execute/test_ray_tasks.py compares its bytes",
    "ray_address": "needs ray",
    "phases": "refused with an index, which the last test here shows",
    "task_index": "the case of executor array sets it",
    "num_tasks": "the case of executor array sets it",
    "work_dir": "for an output in a store",
    "unproven_store": "for an output in a store",
}
"""Options and values that have no case, and why."""
CROWDED: dict[str, Any] = {
    "columns": (),
    "packs_multiple_of": 3,
    "remainder": "fill",
    "max_segments_per_pack": 60,
    "token_type": "auto",
}
"""Options that each case is built with too, as far as the case allows it."""


def options_of(case: Case, folder: Path, output: Path, **more: Any) -> dict[str, Any]:
    end = ENDS.get(case.rows, ".jsonl")
    common = {
        "sources": tuple(str(folder / f"{case.rows}-{name}{end}") for name in ("a", "b")),
        "output": str(output),
        "max_length": 64,
        "engine": "hf",
        "num_proc": 1,
        "verify_engine": 0.0,
    }
    base = BASES[case.rows]
    common |= {} if "input_ids_column" in base else {"tokenizer": str(folder / "tokenizer")}
    options = common | base | case.options | more
    for name, parent in {"keep_tokens": output.parent, "chat_template": folder}.items():
        if name in options:
            options[name] = str(parent / str(options[name]))
    return options


def crowded(case: Case, folder: Path) -> dict[str, Any]:
    """The options of CROWDED that the case does not set and that it can be built with."""
    options = options_of(case, folder, folder / "none")
    added: dict[str, Any] = {}
    for name, value in CROWDED.items():
        if name not in case.options:
            try:
                BuildConfig(**options | added | {name: value})
            except ConfigError:
                continue
            added[name] = value
    return added


def made(case: Case, folder: Path, output: Path, **more: Any) -> PackedShards:
    """Build a case, and the one before it at its place."""
    options = options_of(case, folder, output, **more)
    if case.before is not None:
        first = options | case.before
        if "sources" in case.before:
            first["sources"] = options["sources"][: case.before["sources"]]
        build(BuildConfig(**first))
    if options.get("executor") == "array":
        for number in range(options["num_tasks"]):
            build_share(BuildConfig(**options, task_index=str(number)))
        options["task_index"] = "merge"
    build(BuildConfig(**options))
    return PackedShards(output, split="train")


def packs_of(output: Path, shards: PackedShards) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Columns of all packs, of all splits and epochs."""
    parts = [
        PackedShards(output, split=split, epoch=epoch)
        for split in shards.manifest.splits
        for epoch in range(shards.manifest.epochs)
    ]
    return [dict(pack.columns) for part in parts for pack in part]


def variants(option: str) -> Iterator[Any]:
    """(option, number of the case, crowded); the short run has the first plain case."""
    of_packs = FIELDS[option].metadata["stage"] not in ("read", "tokens", "run", "once")
    for number in range(len(CASES[option])):
        for crowd in (False, True)[: 1 + of_packs]:
            late = [pytest.mark.long] if number or crowd else []
            yield pytest.param(option, number, crowd, marks=late)


@pytest.mark.parametrize(
    ("option", "number", "crowd"), [each for name in CASES for each in variants(name)]
)
def test_an_index_reads_as_the_shards_of_the_same_build(
    option: str,
    number: int,
    crowd: bool,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forked = warm.command("python", "-m", "packprep.execute.worker", RAYON_NUM_THREADS="1")
    monkeypatch.setattr(worker_pool, "COMMAND", forked)
    case = CASES[option][number]
    more = crowded(case, folder) if crowd else {}
    packs = {}
    for kind in ("shards", "index"):
        shards = made(case, folder, tmp_path / kind, **more, materialize=kind)
        packs[kind] = packs_of(tmp_path / kind, shards)
        assert list(map(str, verify(tmp_path / kind).findings)) == []
    assert len(packs["index"]) == len(packs["shards"]) > 0
    for one, other in zip(packs["index"], packs["shards"], strict=True):
        assert list(one) == list(other)
        for column, values in one.items():
            assert values.dtype == other[column].dtype
            assert values.tolist() == other[column].tolist(), column


def test_every_option_has_a_case_that_sets_it_and_one_for_each_of_its_values(folder: Path) -> None:
    types = get_type_hints(Options)
    missing = []
    for field in FIELDS.values():
        if field.name in ELSEWHERE:
            continue
        configs = [
            BuildConfig(**options_of(case, folder, folder / "none"))
            for case in CASES.get(field.name, [])
        ]
        values = [getattr(config, field.name) for config in configs]
        if get_origin(types[field.name]) is Literal:
            missing += [
                f"{field.name} {value}"
                for value in get_args(types[field.name])
                if value not in values and f"{field.name} {value}" not in ELSEWHERE
            ]
        default = getattr(BuildConfig(), field.name)
        if all(value == default for value in values):
            missing.append(field.name)
    assert missing == ["executor local"]  # which all other cases have
    assert {*CASES} <= {*FIELDS}


def test_phases_as_an_index_are_refused(folder: Path) -> None:
    phases = ({"tokens": 150, "max_length": 32},)
    options = options_of(Case("text", {}), folder, folder / "none", phases=phases)
    with refused(ConfigError, "materialize index holds one length of packs"):
        BuildConfig(**options, materialize="index")
