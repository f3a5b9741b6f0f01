"""Each option changes the output for a kind of rows, or is refused for it.

The table has a row for each option. Its value is tried with every kind of rows: a build is refused,
where the row says so, or has another output than the same build without the option.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from packprep import BuildConfig, build
from packprep.config.stages import (
    STAGES,
    Command,
    Ordering,
    Packing,
    Running,
    Writing,
    options_in,
)
from packprep.schemas.canonical import file_digest
from packprep.schemas.manifest import read_manifest
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.zoo import CHAT_TEMPLATE, chat_rows

DATED = "{{ strftime_now('%Y') }}" + CHAT_TEMPLATE
VARIED = "{{ tone }}" + CHAT_TEMPLATE
RENDERER = """
def render(messages, tools, tone=""):
    pieces = []
    for message in messages:
        pieces.append({"text": message["role"] + tone, "train": False})
        answer = message["role"] == "assistant"
        pieces.append({"text": message["content"] + "</s>", "train": answer})
    return pieces
"""
PIECES = [{"text": "a question", "train": False}, {"text": " and more", "train": False}]
BARE = {"tokenizer": "bare"}
KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "text pairs": {"pair_columns": ("text", "body")},
    "chats": {"messages_column": "messages"},
    "rendered": {"messages_column": "messages", "renderer": "renderer.py:render"},
    "prompts": {"prompt_column": "asked", "response_column": "answered"},
    "joined": BARE | {"prompt_column": "text", "response_column": "body"},
    "chat pairs": {
        "prompt_column": "asked",
        "pair_columns": ("answered", "rejected"),
        "max_length": 400,
    },
    "pieces": {"segments_column": "pieces"},
    "ids": {"input_ids_column": "ids", "labels_column": "mask:mask"},
    "unlabelled ids": {"input_ids_column": "ids"},
    "id pairs": {
        "input_ids_column": "auto",
        "pair_columns": ("ids", "others"),
        "labels_column": "mask,few",
    },
}
"""Options that say what a row is. joined: prompts and responses without a chat template."""
TEXTS, CHATS = ["text", "text pairs"], ["chats", "prompts", "chat pairs"]
PAIRS, IDS = [kind for kind in KINDS if "pairs" in kind], ["ids", "unlabelled ids", "id pairs"]
TEMPLATED = [*CHATS, "rendered"]
SPLIT = {"overflow": "split", "max_length": 32}


def but(*kinds: str) -> list[str]:
    """All kinds except these."""
    return [kind for kind in KINDS if kind not in kinds]


@dataclass
class Row:
    """A value of an option, and the kinds of rows for which it is refused.

    also: other options, of the build without it too. of_kind: more of them for some kinds.
    idle: kinds for which it may be set, and says how rows are that are all like this already.
    """

    value: Any
    refused: list[str] = field(default_factory=list)
    also: dict[str, Any] = field(default_factory=dict)
    of_kind: dict[str, dict[str, Any]] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)


UNLABELLED_IDS = "unlabelled ids"
UNLABELLED = [*TEXTS, UNLABELLED_IDS]
WITH_BOS = {kind: {"bos": "<s>"} for kind in ("pieces", *IDS)}
WITH_DATES = {kind: {"chat_template": "dated.jinja"} for kind in (*CHATS, "joined")}
UNCUT = {kind: {"overflow": "truncate", "stride": 0} for kind in PAIRS}
TABLE: dict[str, Row] = {
    "limit": Row(9),
    "max_tokens": Row(300, also={"unit_size": 300}),
    "weights": Row((3, 1)),
    "max_epochs": Row(2.5, also={"weights": (9, 1)}),
    "phases": Row([{"tokens": 200, "weights": [1, 1]}]),
    "unit_size": Row(300, also={"window": 900}),
    "text_column": Row("body", but("text")),
    "text_template": Row("{text} {body}", but("text")),
    "sample_by": Row("line", but("text"), also={"sources": ("notes.txt",)}),
    "truncate_at": Row("e", but("text")),
    "parse_special_tokens": Row(True, but(*TEXTS)),
    "join_pieces": Row(True, but("pieces", "rendered")),
    "boundaries": Row("eos:9", but("ids", "unlabelled ids")),
    "labels_column": Row("labels:labels", but(*IDS)),
    "carry": Row("score"),
    "on_error": Row("skip", also={"sources": ("a.jsonl", "bad.jsonl")}),
    "group_prefix": Row("prompt", also={"holdout": 0.3}),
    "group_column": Row("set"),
    "turns": Row("each", but("chats", "prompts")),
    "bos": Row("</s>", TEMPLATED),
    "eos": Row("<s>", TEMPLATED),
    "check_against": Row("transformers", IDS, idle=but(*IDS)),
    "chat_template": Row("dated.jinja", but(*CHATS, "joined")),
    "renderer": Row("renderer.py:render", but(*TEMPLATED, "joined")),
    "template_date": Row("2027-01-31", but(*CHATS, "joined"), of_kind=WITH_DATES),
    "template_variables": Row(
        '{"tone": "new"}',
        but(*TEMPLATED, "joined"),
        of_kind={"joined": {"chat_template": "varied.jinja"}},
    ),
    "train_on": Row("all", [*TEXTS, *IDS]),
    "train_fields": Row("content", but(*CHATS)),
    "vocab_size": Row(500, but(*IDS)),
    "max_length": Row(128),
    "strategy": Row("greedy"),
    "overflow": Row("drop", also={"max_length": 24}),
    "stride": Row(4, PAIRS, SPLIT, UNCUT),
    "continuation_bos": Row(
        True, [*PAIRS, "chats", "prompts", "rendered"], SPLIT, WITH_BOS | UNCUT
    ),
    "train_overlap": Row(True, PAIRS, SPLIT | {"stride": 4}, UNCUT),
    "min_loss_tokens": Row(30, idle=UNLABELLED),
    "min_document_tokens": Row(110),
    "max_document_tokens": Row(24),
    "skip_rows": Row("listed.txt"),
    "share_prefixes": Row(2),
    "min_pack_tokens": Row(390, also={"max_length": 400}),
    "max_segments_per_pack": Row(2, also={"max_length": 400}),
    "pad_segment_to_multiple": Row(8),
    "shuffle_documents": Row(True, also={"strategy": "greedy"}),
    "order": Row("input"),
    "cost_of": Row("config.json", also={"order": "balanced:3"}, idle=["chat pairs"]),
    "seed": Row(5),
    "window": Row(900, also={"unit_size": 300}),
    "epochs": Row(2),
    "packs_multiple_of": Row("9:fill"),
    "columns": Row("position_ids"),
    "names": Row("hf", PAIRS),
    "token_type": Row("auto"),
    "materialize": Row("index"),
    "shard_size": Row(900),
    "holdout": Row(0.3),
}
MADE_BY = options_in(Running, Command) | {"engine", "verify_engine", "max_row_size"}
"""Options of the work and its guards: they never change the output."""
BY_LENGTH = options_in(Packing, Ordering, Writing) - {"names"}
LENGTHS = ("text", "chat pairs", "ids")
"""Kinds with which options are tried that see only lengths, groups and pairs."""
OF_KIND = {name for options in KINDS.values() for name in options} | {"sources"}


def rows() -> Iterator[dict[str, Any]]:
    """Rows of every kind at once: each build reads its own columns of them."""
    chats = chat_rows(24)
    for row, (text, chat) in enumerate(zip(texts(24, seed=2), chats, strict=True)):
        ids = [row + 3, 9, 7, *range(10, 20 + row)]
        thought = {"role": "assistant", "content": text[:30], "reasoning_content": f"so {row}"}
        yield chat | {
            "text": f"{text[:150]} the </s> cat {row}",
            "body": f"{text[:40]} sat {row}",
            "asked": [{"role": "user", "content": f"question {row}"}],
            "answered": [thought],
            "rejected": [thought | {"content": "no"}],
            "pieces": [*PIECES, {"text": f"{text[:60]} {row}</s>", "train": True}],
            "ids": ids,
            "others": [*ids[:3], 5],
            "mask": [int(at > 2) for at in range(len(ids))],
            "few": [0, 0, 1, 1],
            "labels": [id_ if at > 5 else -100 for at, id_ in enumerate(ids)],
            "score": row,
            "set": row % 2,
            "prompt": row // 3,
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All files of the builds; in the folder UNLABELLED_IDS without labels."""
    folder = tmp_path_factory.mktemp("inputs")
    fill(folder, [*rows()])
    (folder / UNLABELLED_IDS).mkdir()
    fill(folder / UNLABELLED_IDS, [{**row, "labels": None} for row in rows()])
    return folder


def fill(folder: Path, every: list[dict[str, Any]]) -> None:
    write_jsonl(folder / "a.jsonl", every[:12])
    write_jsonl(folder / "b.jsonl", every[12:])
    write_jsonl(folder / "bad.jsonl", [*every[12:], dict.fromkeys(every[0])])
    side = {"bos_token": "<s>", "eos_token": "</s>"}
    save_tokenizer(folder / "bare", config=side)
    save_tokenizer(folder / "tokenizer", config=side | {"chat_template": VARIED})
    (folder / "dated.jinja").write_text(DATED)
    (folder / "varied.jinja").write_text(VARIED)
    (folder / "renderer.py").write_text(RENDERER)
    (folder / "notes.txt").write_text("the cat\nsat on\n\nthe mat\n")
    (folder / "listed.txt").write_text("a.jsonl:3\nb.jsonl:7\n")
    model = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 9}
    (folder / "config.json").write_text(json.dumps(model))


def made(output: Path, **options: Any) -> object:
    """What a build writes: its shards, without names of options and without times; or its error."""
    common: dict[str, Any] = {"sources": ("a.jsonl", "b.jsonl"), "tokenizer": "tokenizer"}
    config = BuildConfig(**common | {"max_length": 64} | options, output=str(output))
    try:
        build(config)
    except InputError as error:
        if config.on_error == "skip":
            raise
        return str(error)
    manifest = read_manifest(output)
    shards = {str(path.relative_to(output)): file_digest(path) for path in output.rglob("*.arrow")}
    return shards, manifest.vocab_size, manifest.data["splits"], manifest.ledger


@cache
def plainly(folder: Path, options: str) -> object:
    """What a build without an option writes; many rows of the table share it."""
    with tempfile.TemporaryDirectory() as output:
        return made(Path(output) / "out", **json.loads(options))


def options_of(option: str, kind: str) -> dict[str, Any]:
    row = TABLE[option]
    return KINDS[kind] | row.also | row.of_kind.get(kind, {})


@pytest.mark.parametrize(
    ("option", "kind"),
    [(option, kind) for option, row in TABLE.items() for kind in row.refused],
)
def test_an_option_that_can_do_nothing_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, kind: str
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=option):
        made(tmp_path / "out", **options_of(option, kind) | {option: TABLE[option].value})


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "kind"),
    [
        (option, kind)
        for option, row in TABLE.items()
        for kind in KINDS
        if kind not in [*row.refused, *row.idle] and option not in {*KINDS[kind]} - {"max_length"}
        if option not in BY_LENGTH or kind in LENGTHS
    ],
)
def test_any_other_option_changes_the_output(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, kind: str
) -> None:
    folder = folder / kind if kind == UNLABELLED_IDS else folder
    monkeypatch.chdir(folder)
    options = options_of(option, kind)
    plain = plainly(folder, json.dumps(options))
    assert made(tmp_path / "out", **options | {option: TABLE[option].value}) != plain


def test_the_table_has_every_option() -> None:
    named = {spec.name for stage in STAGES for spec in fields(stage)}
    assert named == TABLE.keys() | MADE_BY | OF_KIND | {"tokenizer"}
