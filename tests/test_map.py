"""Packing in Python: `TokenizeAndPack` and `pack_dataset` have the packs of `build`."""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from datasets.fingerprint import Hasher

from packprep import BuildConfig, TokenizeAndPack, build, pack_dataset
from packprep.schemas.manifest import packs
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import texts, tiny_tokenizer
from tests.helpers.errors import refused

PLAIN: dict[str, Any] = {"max_length": 64, "bos": "<s>", "eos": "</s>"}
CHAT = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
CHAT += "{% if add_generation_prompt %}<s>assistant: {% endif %}"
TEXTS = [text or "a" for text in texts(40)]
KINDS: dict[str, tuple[Sequence[dict[str, Any]], dict[str, Any]]] = {
    "text": ([{"text": text, "n": n} for n, text in enumerate(texts(40))], PLAIN),
    "text, all settings": (
        [{"text": text, "lang": len(text) % 3, "score": len(text) / 7} for text in TEXTS],
        {**PLAIN, "group": "lang", "carry": ["score"], "strategy": "greedy", "multiple": "8:fill"},
    ),
    "ids": (
        [{"ids": [n % 50] * (n % 40 + 1)} for n in range(60)],
        {"ids": "ids", "max_length": 48, "strategy": "wrapped", "token_type": "int32"},
    ),
    "chats": (
        [
            {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "b"}]}
            for text in TEXTS
        ],
        {"messages": "auto", "overflow": "drop", "max_length": 256, "turns": "auto"},
    ),
    "pairs": (
        [{"prompt": "say", "yes": text, "no": text[::-1]} for text in TEXTS],
        {**PLAIN, "pairs": "prompt,yes,no", "max_length": 96},
    ),
}
small_batch = pytest.mark.filterwarnings("ignore:packing a batch")


def options_of(kind: str, folder: Path) -> dict[str, Any]:
    options = dict(KINDS[kind][1])
    if kind == "chats":
        (folder / "chat.jinja").write_text(CHAT)
        options["chat_template"] = str(folder / "chat.jinja")
    return options


@small_batch
@pytest.mark.parametrize("kind", KINDS)
def test_packs_of_a_whole_dataset_are_those_that_build_writes(kind: str, tmp_path: Path) -> None:
    rows, options = KINDS[kind][0], options_of(kind, tmp_path)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    places: dict[str, Any] = {"sources": [str(file)], "output": str(tmp_path / "out")}
    output = build(BuildConfig(**places, tokenizer=tiny_tokenizer(), **options))
    expected = pa.Table.from_batches([each.batch for each in packs(output)]).to_pylist()
    dataset = datasets.Dataset.from_list([*rows])
    packed = pack_dataset(dataset, tiny_tokenizer(), **options)
    assert packed.to_list() == expected
    function = pickle.loads(pickle.dumps(TokenizeAndPack(tiny_tokenizer(), **options)))
    settings = {"batched": True, "batch_size": None, "remove_columns": dataset.column_names}
    for shape in (None, "arrow"):
        mapped = dataset.with_format(shape).map(function, **settings).with_format(None)
        assert mapped.to_list() == expected
    assert pack_dataset(dataset.to_iterable_dataset(), tiny_tokenizer(), **options)[:] == packed[:]


@small_batch
@pytest.mark.parametrize("processes", [None, 2])
def test_small_batches_pack_by_themselves_and_say_once_what_that_costs(
    processes: int | None,
) -> None:
    dataset = datasets.Dataset.from_dict({"text": texts(80)})
    function = TokenizeAndPack(tiny_tokenizer(), **PLAIN)
    settings: dict[str, Any] = {"batched": True, "batch_size": 20, "with_indices": True}
    settings |= {"remove_columns": ["text"], "num_proc": processes}
    if processes:
        packed = dataset.map(function, **settings)
    else:
        with pytest.warns(UserWarning, match="packing a batch of 20 rows by itself") as caught:
            packed = dataset.map(function, **settings)
        assert len(caught) == 1
    for row in packed:
        assert len({document // 20 for document in row["document_ids"]}) == 1
    seen = {document for row in packed for document in row["document_ids"]}
    assert seen == {row for row, text in enumerate(texts(80)) if text}
    assert Hasher.hash(function) == Hasher.hash(TokenizeAndPack(tiny_tokenizer(), **PLAIN))


def test_the_hash_for_map_is_of_the_content_of_files(tmp_path: Path) -> None:
    hashes, options = list[str](), options_of("chats", tmp_path)
    for template in (CHAT, CHAT, f"{CHAT}!"):
        Path(options["chat_template"]).write_text(template)
        hashes.append(Hasher.hash(TokenizeAndPack(tiny_tokenizer(), **options)))
    assert hashes[0] == hashes[1] != hashes[2]


LONG = {"text": "word " * 200}


@pytest.mark.parametrize(
    ("rows", "more", "error", "words"),
    [
        ([LONG], {"shard_size": "1MB"}, ConfigError, "shard_size is for build"),
        ([LONG], {"max_length": 0}, ConfigError, "max_length is 0"),
        ([], {}, InputError, "the dataset holds no rows; expected at least one document"),
        ([{"body": "a"}], {}, InputError, "the dataset has no column 'text'; it has body"),
        ([LONG, {"text": None}], {}, InputError, "row 1: the row has no 'text'"),
        ([{"text": "a"}, LONG], {"overflow": "error"}, InputError, "row 1 has 802 tokens"),
    ],
)
def test_what_cannot_be_packed_is_a_sentence(
    rows: list[Any], more: dict[str, Any], error: type[Exception], words: str
) -> None:
    with refused(error, words):
        pack_dataset(datasets.Dataset.from_list(rows), tiny_tokenizer(), **PLAIN | more)


@small_batch
def test_errors_and_ids_of_a_batch_are_those_of_the_dataset() -> None:
    skipping = TokenizeAndPack(tiny_tokenizer(), on_error="skip", multiple="2:fill", **PLAIN)
    made = skipping({"text": ["a", None, "b"]}, [7, 8, 9])
    assert made["document_ids"] == [[7, 9], [-1]]
    pairs = TokenizeAndPack(tiny_tokenizer(), pairs="text,other", **PLAIN)
    made = pairs({"text": ["a", "b"], "other": ["c", "d"]}, [7, 8])
    assert made["pair_ids"] == made["document_ids"] == [[7, 7, 8, 8]]
    strict = TokenizeAndPack(tiny_tokenizer(), overflow="error", **PLAIN)
    with refused(InputError, "row 7 has ", "tokens but a pack holds 64"):
        strict({"text": [LONG["text"]]}, [7])
    with refused(InputError, "this is a row, and no batch; give map batched=True"):
        strict({"text": "one row"})
    with refused(InputError, "the columns text make no table"):
        strict({"text": ["a", 3]})


@pytest.mark.parametrize("streaming", [False, True])
def test_every_split_is_packed_by_itself_and_keeps_its_format(streaming: bool) -> None:
    dataset = datasets.Dataset.from_dict({"text": texts(60)}).with_format("numpy")
    splits = {"train": dataset, "test": dataset.select(range(20, 50))}
    given: Any = datasets.DatasetDict(splits)
    if streaming:
        streams = {split: rows.to_iterable_dataset() for split, rows in splits.items()}
        given = datasets.IterableDatasetDict(streams)
    packed = pack_dataset(given, tiny_tokenizer(), **PLAIN)
    for split, rows in splits.items():
        expected = pack_dataset(rows, tiny_tokenizer(), **PLAIN)
        assert packed[split].with_format(None).to_list() == expected.with_format(None).to_list()
        assert expected.format["type"] == "numpy"
    splits["test"] = splits["test"].rename_column("text", "body")
    with refused(InputError, "split test: the dataset has no column 'text'; it has body"):
        pack_dataset(datasets.DatasetDict(splits), tiny_tokenizer(), **PLAIN)
