"""`verify --level full` finds every wrong value of every column, under digests that are right.

A table: kinds of outputs, as shards and as an index, times their columns, times changes of a value.
"""

import functools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from packprep import build
from packprep.derive.merge import merge
from packprep.inspect import retokenize
from packprep.inspect.verify import verify
from packprep.schemas import read_manifest
from packprep.schemas.columns import HF_NAMES, STANDARD_COLUMNS, Column
from packprep.schemas.index_table import _DTYPES
from packprep.tokens.reading import reader
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.files import config
from tests.helpers.planted import Packs, packs_of, plant, plant_tokens, token_rows
from tests.helpers.trees import answer_rows

TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m.role + '\n' + m.content + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


def id_row(number: int) -> dict[str, Any]:
    """A row of token ids with a mask, other labels, and values per row and per token."""
    places = range(12 + 17 * (number % 4))
    ids = [3 + (5 * number + 7 * place) % 90 for place in places]
    mask = [int(place > 4 + 5 * (number % 8)) for place in places]
    return {
        "ids": ids,
        "mask": mask,
        "targets": [token if on else -100 for token, on in zip(ids, mask, strict=True)],
        "quality": number / 8,
        "weights": [place / 4 + number for place in places],
        "part": number % 3,
    }


def chat_row(number: int) -> dict[str, Any]:
    roles = enumerate(["user", "assistant"] * 2)
    messages = [{"role": role, "content": f"{role} {number} {turn}"} for turn, role in roles]
    return {"messages": messages, "quality": number}


def pair_row(n: int) -> dict[str, Any]:
    sides = {"chosen": f"good {n} yes", "rejected": f"bad {n}"}
    return {"prompt": f"what is {n}", "quality": n} | sides


def pair_id_row(n: int) -> dict[str, Any]:
    return {"a": [n, n + 1, n + 2, n + 3], "b": [n + 9, n, n + 4] + [7] * n, "quality": n}


SOURCES: dict[str, list[Any]] = {
    "texts": [text or "none" for text in texts(12)],
    "ids": [*map(id_row, range(9))],
    "chats": [*map(chat_row, range(5))],
    "pairs": [*map(pair_row, range(6))],
    "pair_ids": [*map(pair_id_row, range(6))],
    "answers": answer_rows(3),
}
_IDS = {"of": "ids", "input_ids_column": "ids", "vocab_size": 400}
_MASKED = _IDS | {"loss_mask_column": "mask"}
_CARRY = {"carry": ("quality", "weights")}
_CHATS = {"of": "chats", "messages_column": "messages", "carry": ("quality",)}
_PAIRS = {"pair_columns": ("chosen", "rejected"), "prompt_column": "prompt", "overflow": "truncate"}
_ID_PAIRS = {"of": "pair_ids", "input_ids_column": "auto", "pair_columns": ("a", "b")}
_TREES = {"share_prefixes": 1, "max_length": 256}
_ANSWERS = {"of": "answers", "group_prefix": "prompt"}

KINDS: dict[str, dict[str, Any]] = {
    "text": {"of": "texts"},
    "pieces": {"of": "texts", "stride": 7, "continuation_bos": True},
    "both pieces": {"of": "texts", "stride": 7, "train_overlap": True},
    "left": {"of": "texts", "overflow": "truncate:left"},
    "wrapped": {"of": "texts", "strategy": "wrapped"},
    "padded": {"of": "texts", "pad_segment_to_multiple": 8, "packs_multiple_of": "4:fill"}
    | {"continuation_bos": True, "stride": 3},
    "dropped": {"of": "texts", "overflow": "drop", "bos": "none", "min_document_tokens": 4}
    | {"max_document_tokens": 90, "min_pack_tokens": 12, "max_segments_per_pack": 3}
    | {"truncate_at": "mat", "order": "length"},
    "two splits": {"of": "texts", "strategy": "balanced", "order": "balanced", "holdout": 0.3}
    | {"stride": 5, "eos": "none", "max_length": 16, "pad_segment_to_multiple": 4},
    "masked": _MASKED | _CARRY | {"stride": 9, "max_length": 32},
    "masked, padded": _MASKED | _CARRY | {"pad_segment_to_multiple": 8},
    "labels": _IDS | {"labels_column": "targets", "min_loss_tokens": 0, "max_length": 32},
    "balanced": _MASKED | {"overflow": "truncate:balanced", "max_length": 32},
    "ids and a tokenizer": {"of": "ids", "input_ids_column": "ids", "bos": "<s>", "eos": "</s>"},
    "chats": _CHATS,
    "balanced chats": _CHATS | {"overflow": "truncate:balanced", "max_length": 32},
    "turns": _CHATS | {"turns": "each"},
    "pairs": _PAIRS | {"of": "pairs"},
    "pairs of ids": _ID_PAIRS | {"vocab_size": 40, "overflow": "drop", "carry": ("quality",)},
    "trees of turns": _CHATS | _TREES | {"turns": "each"},
    "trees of pairs": _PAIRS | {"of": "pairs"} | _TREES,
    "trees of answers": _MASKED | _CARRY | _ANSWERS | _TREES | {"packs_multiple_of": "4:fill"},
    "trees of pieces": _MASKED | _ANSWERS | _TREES | {"stride": 4, "max_length": 32},
    "mix": {"of": "ids", "max_epochs": 3.0, "weights": (1,), "max_tokens": 500} | _MASKED,
    "epochs": {"of": "texts", "epochs": 2, "order": "shuffle"},
    "hf": _CHATS | {"names": "hf"},
    "compact": _MASKED | {"token_type": "uint16", "stride": 5, "max_length": 32},
}
_TREE = {"segment_parents", "row_starts", "row_segments", "row_trained", "row_label_starts"}
_ROWS = {"labels", "label_weights", "row_ids", "row_ends", *_TREE}
ALWAYS = ({"tokens", "position_ids", "cu_seqlens", "document_ids", "document_starts"}, {"lengths"})
SHOWN: dict[str, tuple[set[str], set[str]]] = {
    "text": (set(), {"store_rows", "document_starts"}),
    "pieces": ({"labels"}, {"bos", "repeated"}),
    "padded": ({"labels", "segment_lengths"}, {"segment_lengths"}),
    "masked": ({"labels", "quality", "weights"}, {"repeated"}),
    "balanced": ({"labels"}, {"front", "hole"}),
    "chats": ({"labels", "turn_ids", "quality"}, set()),
    "pairs": ({"labels", "pair_ids", "pair_sides"}, set()),
    "trees of turns": ({"turn_ids", "row_turns", "quality"} | _ROWS, {"row_store_rows"} | _TREE),
    "trees of pairs": ({"pair_ids", "pair_sides", "row_sides"} | _ROWS, {"row_store_rows"}),
    "trees of answers": ({"quality", "weights"} | _ROWS, set()),
    "hf": ({"input_ids", "seq_lengths", "labels"} - ALWAYS[0], set()),
}
"""Columns that have a planted fault in outputs of a kind, in addition to ALWAYS."""


TOKEN_COLUMNS = {
    "masked": {"tokens", "labels", "quality", "weights"},
    "labels": {"tokens", "labels"},
    "turns": {"tokens", "labels", "turn_ids", "turn_rows", "quality"},
    "pairs of ids": {"tokens", "pair_split", "quality"},
}


def shown(kind: str, form: str) -> set[str]:
    """Columns of the files of an output that have a planted fault."""
    number = 1 if form == "index" else 0
    columns = ALWAYS[number] | SHOWN.get(kind, (set(), set()))[number]
    hf = number == 0 and KINDS[kind].get("names") == "hf"
    return columns - {*HF_NAMES} if hf else columns


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A sound output of each kind, made once."""
    folder = tmp_path_factory.mktemp("planted")
    chat = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    save_tokenizer(folder / "chat", config=chat)
    save_tokenizer(folder / "plain")
    for name, rows in SOURCES.items():
        write_jsonl(folder / f"{name}.jsonl", rows)

    @functools.cache
    def output(kind: str, form: str) -> Path:
        options = {"max_length": 64, "order": "input", **KINDS[kind]}
        of = options.pop("of")
        if options.get("vocab_size") is None:
            options["tokenizer"] = str(folder / ("plain" if of == "texts" else "chat"))
        out = folder / f"{kind}-{form}"
        if form == "shards":  # the bytes that a build writes
            merge([output(kind, "index")], out, materialize="shards")
            return out
        source = str(folder / f"{of}.jsonl")
        build(config(sources=(source,), output=str(out), materialize="index", **options))
        return out

    return output


@pytest.fixture(scope="module", autouse=True)
def encoded_once() -> Iterator[None]:
    """Tokenize the rows of an output again once, not for each planted fault."""
    known: dict[str, Any] = {}

    def once(name: str, key_of: Callable[..., Any], whole: Callable[[Any], Any]) -> Any:
        make = getattr(retokenize, name)

        def made(*arguments: Any) -> Any:
            key = f"{name} {key_of(*arguments)}"
            if key not in known:
                known[key] = whole(make(*arguments))
            return known[key]

        return made

    def same(value: Any) -> Any:
        return value

    with pytest.MonkeyPatch.context() as patch:
        for name, key_of, whole in (
            ("find_encoder", lambda coverage, *_: coverage.manifest.data["identity"], same),
            ("find_source", lambda manifest, *_: manifest.data["identity"], same),
            ("encoded_rows", lambda source, rows, encoder, _: id(encoder), list),
        ):
            patch.setattr(retokenize, name, once(name, key_of, whole))
        patch.setattr("os.fsync", lambda _: None)
        yield


class Change(NamedTuple):
    """A wrong value. pack: in the first shard. words: for the message of a failed test."""

    pack: int
    column: str
    place: int
    value: Any
    words: str


def changes_of(out: Path, column: Column, most: int) -> list[Change]:
    """Wrong values in some places of a column: one more, one less, and for labels on and off.

    most: about as many of them.
    """
    changes: list[Change] = []
    packs = packs_of(out)
    for number in sorted({0, len(packs) // 2, len(packs) - 1}):
        pack, values = packs[number], packs[number][column.name]
        places = {0, len(values) // 3, 2 * len(values) // 3, len(values) - 1} if values else set()
        for place in sorted(places):
            more = 1 if len(changes) % 2 else -1
            words = f"{values[place]} {more:+d}"
            changes.append(Change(number, column.name, place, values[place] + more, words))
        if column.name == "labels":
            ids = pack.get("tokens", pack.get("input_ids"))
            for on in (True, False):
                places_of = [n for n, label in enumerate(values) if (label != -100) == on and n]
                for place in places_of[len(places_of) // 2 :][:1]:
                    value = -100 if on or ids is None else ids[place]
                    changes.append(Change(number, column.name, place, value, "off" if on else "on"))
    return changes[:: max(len(changes) // most, 1)]


def planted_in(out: Path, change: Change, copy: Path) -> bool:
    """Plant a fault in a copy of an output; False if the type of the column cannot hold it."""
    shutil.copytree(out, copy, copy_function=os.link)

    def edit(packs: Packs) -> None:
        packs[change.pack][change.column][change.place] = change.value

    try:
        plant(copy, edit)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def packs_in(out: Path) -> list[dict[str, Any]]:
    """The packs of an index as a build without one writes them."""
    manifest = read_manifest(out)
    return [
        pack
        for split in manifest.splits
        for batch in reader(out, manifest).packs(split)
        for pack in batch.rows.to_pylist()
    ]


FORMS = ("shards", "index")
SHORT = ("pieces", "masked", "turns", "pairs", "trees of answers")
"""Kinds that the short run plants faults in; between them they have most columns."""


def marked(kinds: Iterable[str]) -> list[Any]:
    long = pytest.mark.long
    return [kind if kind in SHORT else pytest.param(kind, marks=long) for kind in kinds]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", marked(KINDS))
def test_every_wrong_value_is_found(
    outputs: Callable[[str, str], Path], tmp_path: Path, kind: str, form: str
) -> None:
    out = outputs(kind, form)
    verdict = verify(out, level="full")
    assert (list(map(str, verdict.findings)), verdict.not_checked) == ([], [])
    columns = read_manifest(out).file_columns
    missed, found = [], Counter[str]()
    for column in columns:
        # Those that all outputs have get a few in each, the others more.
        most = 8 if form == "index" else 4 if column.name in SHOWN.get(kind, [()])[0] else 2
        for number, change in enumerate(changes_of(out, column, most)):
            copy = tmp_path / f"{column.name}-{number}"
            if not planted_in(out, change, copy):
                continue
            if not verify(copy, level="full").sound:
                found[column.name] += 1
            # Not every number of a plan has an effect: a hole of no tokens may be anywhere.
            elif form == "shards" or packs_in(copy) != packs_in(out):
                missed.append(change)
            shutil.rmtree(copy)
    assert missed == []
    assert {name for name in shown(kind, form) if not found[name]} == set()


@pytest.mark.parametrize("kind", marked(TOKEN_COLUMNS))
def test_every_wrong_value_in_token_files_of_an_index_is_found(
    outputs: Callable[[str, str], Path], tmp_path: Path, kind: str
) -> None:
    out = outputs(kind, "index")
    missed, columns = [], set[str]()
    for column in token_rows(out)[1]:
        columns.add(column)
        for more in (1, -1):
            copy = tmp_path / f"{column}-{more}"
            shutil.copytree(out, copy, copy_function=os.link)

            def edit(rows: Packs, column: str = column, more: int = more) -> None:
                value: Any = rows[1][column]
                if isinstance(value, list):
                    value[len(value) // 2] += more
                else:
                    rows[1][column] = value + more

            with suppress(OverflowError):  # no negative number in a column of unsigned ones
                plant_tokens(copy, edit)
            if verify(copy, level="full").sound and packs_in(copy) != packs_in(out):
                missed.append((column, more))
            shutil.rmtree(copy)
    assert missed == []
    assert columns >= TOKEN_COLUMNS[kind]


def test_every_column_of_the_format_has_a_planted_fault() -> None:
    """A new column needs a kind of output here that has it."""
    shards, index = (set[str]().union(*(shown(kind, form) for kind in KINDS)) for form in FORMS)
    assert shards >= {*STANDARD_COLUMNS, *HF_NAMES.values()}
    assert index >= {*_DTYPES}
