"""Options of a build, as an index and in two commands: both read as the shards of one build.

The table has a row for each field of BuildConfig that does not decide the plan alone, and a case
for each value that a field names. A new option without a case fails here.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from packprep import BuildConfig, build, pack, tokenize
from packprep.cli.commands.build import choices_of
from packprep.config.options import Options
from packprep.config.stages import Cutting, Ordering, Packing, options_in
from packprep.config.verbs import PACK, TOKENIZE
from packprep.execute.pipeline import build_share, run_share
from packprep.execute.stored import of_pack, of_tokenize
from packprep.inspect.verify import verify
from packprep.loaders import PackedShards
from tests.chat.test_build import thoughtful
from tests.chat.test_turn_builds import SMALL
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.trees import answer_rows

FIELDS = {field.name: field for field in fields(Options)}


class Case(NamedTuple):
    """A build. rows: files that it reads. before: options of an earlier build at the same place."""

    rows: str
    options: dict[str, Any]
    before: dict[str, Any] | None = None


def ids_rows() -> list[dict[str, Any]]:
    """Token ids, which begin alike in four rows each, with a value for each row and token."""
    return [
        row | {"labels": [i if on else -100 for i, on in zip(row["ids"], row["mask"], strict=True)]}
        for row in answer_rows(6)
    ]


def pair_rows(count: int) -> list[dict[str, Any]]:
    sides = {"chosen": 1, "rejected": 3}
    return [
        {side: [row + 3] * (row % 5 + 2) + [more] for side, more in sides.items()}
        | {"start": [7, 8, row + 3], "set": row % 2, "prompt": row // 3}
        for row in range(count)
    ]


def piece_rows(count: int) -> list[dict[str, Any]]:
    return [
        {"segments": [{"text": text[:40], "train": False}, {"token_ids": [7, 8], "train": True}]}
        for text in texts(count)
    ]


def text_rows(count: int) -> list[dict[str, Any]]:
    return [{"text": text, "set": row % 2} for row, text in enumerate(texts(count))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All sources, each in two files, and a tokenizer."""
    folder = tmp_path_factory.mktemp("sources")
    side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": SMALL}
    save_tokenizer(folder / "tokenizer", config=side)
    rows: dict[str, list[dict[str, Any]]] = {
        "text": text_rows(24),
        "ids": ids_rows(),
        "pairs": pair_rows(14),
        "chat": thoughtful(6),
        "pieces": piece_rows(12),
        "bad": [*text_rows(12), {"text": None}],
    }
    for kind, of_kind in rows.items():
        half = len(of_kind) // 2
        write_jsonl(folder / f"{kind}-a.jsonl", of_kind[:half])
        write_jsonl(folder / f"{kind}-b.jsonl", of_kind[half:])
    return folder


BASES: dict[str, dict[str, Any]] = {
    "text": {},
    "bad": {"on_error": "skip"},
    "ids": {"input_ids_column": "ids", "vocab_size": 400, "labels_column": "mask"},
    "pairs": {
        "input_ids_column": "auto",
        "vocab_size": 400,
        "pair_columns": ("chosen", "rejected"),
        "overflow": "truncate",
    },
    "chat": {"messages_column": "messages", "max_length": 256},
    "pieces": {"segments_column": "segments"},
}
"""Options of all builds of these rows."""
TREES = {"share_prefixes": 2}

CASES: dict[str, list[Case]] = {
    "messages_column": [Case("chat", {})],
    "prompt_column": [Case("pairs", {"prompt_column": "start"})],
    "pair_columns": [Case("pairs", {}), Case("pairs", TREES)],
    "input_ids_column": [Case("ids", {})],
    "labels_column": [Case("ids", {"labels_column": name}) for name in ("labels", "mask")],
    "segments_column": [Case("pieces", {})],
    "join_pieces": [Case("pieces", {"join_pieces": True})],
    "boundaries": [Case("ids", {"boundaries": "eos:9"})],
    "carry": [
        Case("ids", {"carry": ("weights", "quality:float64", "set:int8")}),
        Case("ids", {"carry": ("weights", "quality"), **TREES, "group_prefix": "prompt"}),
    ],
    "limit": [Case("text", {"limit": 7})],
    "max_tokens": [Case("text", {"max_tokens": 60, "unit_size": 400})],
    "weights": [
        Case("text", {"weights": (3, 1), "stride": 4, "max_length": 16}),
        Case("text", {"weights": (3, 1), "strategy": "wrapped"}),
    ],
    "max_epochs": [Case("text", {"weights": (3, 1), "max_epochs": 2.5})],
    "on_error": [Case("bad", {}), Case("text", {"on_error": "stop"})],
    "unit_size": [Case("text", {"unit_size": 300})],
    "turns": [
        *(Case("chat", {"turns": turns}) for turns in ("row", "each", "auto", "each:2")),
        Case("chat", {"turns": "each", **TREES}),
    ],
    "vocab_size": [Case("ids", {})],
    "keep_tokens": [Case("text", {"keep_tokens": "store"})],
    "window": [Case("text", {"unit_size": 300, "window": 900})],
    "share_prefixes": [Case("pairs", TREES)],
    "group_prefix": [
        Case("ids", {**TREES, "group_prefix": "prompt"}),
        Case("pairs", {**TREES, "group_prefix": "prompt", "max_length": 128}),
    ],
    "group_column": [
        Case("text", {"group_column": "set"}),
        Case("pairs", {"group_column": "set", **TREES}),
        Case("ids", {"group_column": "set", **TREES, "group_prefix": "prompt"}),
        Case("ids", {"group_column": "set", "epochs": 2}),
    ],
    "epochs": [Case("ids", {"epochs": 3}), Case("text", {"epochs": 2, "strategy": "wrapped"})],
    "packs_multiple_of": [
        Case(kind, {"packs_multiple_of": multiple, **more})
        for kind in ("ids", "pairs")
        for multiple in (2, "2:fill")
        for more in ({}, TREES)
    ],
    "columns": [
        Case(kind, {"columns": columns, "packs_multiple_of": "3:fill", **more})
        for columns in ((), ("position_ids",), ("document_ids",), ("document_starts",))
        for kind, more in (("ids", {}), ("pairs", TREES))
    ],
    "names": [Case("ids", {"names": names}) for names in ("packprep", "hf")],
    "token_type": [Case("ids", {"token_type": kind}) for kind in ("auto", "int32", "uint16")],
    "shard_size": [Case("text", {"shard_size": 900})],
    "holdout": [Case("ids", {"holdout": 0.3, "seed": 1}), Case("text", {"holdout": 0.3})],
    "executor": [Case("text", {"executor": "array", "unit_size": 300})],
    "overwrite": [Case("ids", {"overwrite": True}, before={"seed": 1})],
    "append": [
        Case("ids", {"append": True, **more}, before={"append": False, "sources": 1})
        for more in ({}, {"epochs": 3})
    ],
}
PHASES: list[dict[str, Any]] = [{"weights": [3, 1], "max_length": 32}, {"weights": [1, 2]}]
ALONE: dict[str, list[Case]] = {
    "phases": [
        Case("text", {"phases": [phase | {"tokens": tokens} for phase in PHASES]})
        for tokens in (150, "50%")
    ]
}
"""Cases of options that an index refuses."""
PLANNED = options_in(Cutting, Packing, Ordering)
"""Stages whose options decide the plan alone; tests/schemas/index/test_packs.py draws plans."""
ELSEWHERE = """
sources output tokenizer materialize engine part
text_column text_template response_column sample_by bos eos parse_special_tokens truncate_at
train_on train_fields chat_template template_date template_variables verify_engine max_row_size
num_proc max_memory work_dir unproven_store check_against renderer
"""
# Options that have no case: every case has one; or they decide at most ids and labels, before the
# token files, which both kinds share; or they are of the hub, Ray or a store.


def options_of(case: Case, folder: Path, output: Path, **more: Any) -> dict[str, Any]:
    common = {
        "sources": tuple(str(folder / f"{case.rows}-{name}.jsonl") for name in ("a", "b")),
        "output": str(output),
        "max_length": 64,
        "engine": "hf",
        "num_proc": 1,
        "verify_engine": 0.0,
    }
    base = BASES[case.rows]
    common |= {} if "input_ids_column" in base else {"tokenizer": str(folder / "tokenizer")}
    options = common | base | case.options | more
    if "keep_tokens" in options:
        options["keep_tokens"] = str(output.parent / "store")
    return options


def made(case: Case, folder: Path, output: Path, **more: Any) -> PackedShards:
    """Build a case, and the one before it at its place."""
    options = options_of(case, folder, output, **more)
    if case.before is not None:
        first = options | case.before
        if "sources" in case.before:
            first["sources"] = options["sources"][: case.before["sources"]]
        build(BuildConfig(**first))
    if options.get("executor") == "array":
        for number in range(2):
            build_share(BuildConfig(**options, part=f"{number}/2"))
        options["part"] = "merge"
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


@pytest.mark.parametrize(
    ("option", "number"),
    [
        pytest.param(option, number, marks=[pytest.mark.long] if number else [])
        for option, cases in CASES.items()
        for number in range(len(cases))
    ],
)
def test_an_index_reads_as_the_shards_of_the_same_build(
    option: str, number: int, folder: Path, tmp_path: Path
) -> None:
    packs = {}
    for kind in ("shards", "index"):
        shards = made(CASES[option][number], folder, tmp_path / kind, materialize=kind)
        packs[kind] = packs_of(tmp_path / kind, shards)
        assert list(map(str, verify(tmp_path / kind).findings)) == []
    assert len(packs["index"]) == len(packs["shards"]) > 0
    for one, other in zip(packs["index"], packs["shards"], strict=True):
        assert list(one) == list(other)
        for column, values in one.items():
            assert values.dtype == other[column].dtype
            assert values.tolist() == other[column].tolist(), column


def packed(case: Case, folder: Path, output: Path) -> dict[str, Any]:
    """Tokenize a case and pack its tokens; the data of the manifest."""
    store = str(output.with_name("tokens"))

    def both(options: dict[str, Any], part: str | None = None) -> dict[str, Any]:
        of_text = {name: value for name, value in options.items() if name in TOKENIZE}
        of_packs = {name: value for name, value in options.items() if name in PACK}
        of_text |= {"output": store, "sources": options["sources"], "part": part}
        of_packs |= {"materialize": "shards", "part": part}
        of_one = of_packs if {"weights", "phases"} & {*options} else of_text
        for each in (of_text, of_packs):
            if each is not of_one:
                each.pop("max_tokens", None)
        if part is not None:
            run_share(of_tokenize(BuildConfig(**of_text)))
            return run_share(of_pack([store], of_packs)) if part == "1/2" else {}
        tokenize(BuildConfig(**of_text))
        return pack([store], **of_packs).data

    options = options_of(case, folder, output)
    if case.before is not None:
        first = options | case.before
        first["sources"] = options["sources"][: case.before.get("sources", 2)]
        both(first)
    if options.pop("executor", None) == "array":
        for part in ("0/2", "1/2"):
            both(options, part)
    return both(options)


@pytest.mark.parametrize(
    ("option", "number"),
    [
        pytest.param(option, number, marks=[pytest.mark.long] if number else [])
        for option, cases in (CASES | ALONE).items()
        for number in range(len(cases))
    ],
)
def test_tokenize_and_pack_write_what_build_writes(
    option: str, number: int, folder: Path, tmp_path: Path
) -> None:
    case = (CASES | ALONE)[option][number]
    built = made(case, folder, tmp_path / "built", materialize="shards").manifest
    assert packed(case, folder, tmp_path / "packed") == built.data


def test_every_option_has_a_case_that_sets_it_and_one_for_each_of_its_values(folder: Path) -> None:
    missing = []
    for field in FIELDS.values():
        if field.name in ELSEWHERE.split() or field.name in PLANNED:
            continue
        configs = [
            BuildConfig(**options_of(case, folder, folder / "none"))
            for case in (CASES | ALONE).get(field.name, [])
        ]
        values = [getattr(config, field.name) for config in configs]
        missing += [
            f"{field.name} {name}"
            for name in choices_of(field)
            if name not in (str(value).partition(":")[0] for value in values)
        ]
        default = getattr(BuildConfig(), field.name)
        if all(value == default for value in values):
            missing.append(field.name)
    assert missing == ["executor local", "executor isolated", "executor ray"]
    assert {*CASES, *ALONE} <= {*FIELDS}
