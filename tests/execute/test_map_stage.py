import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from packprep import BuildConfig, TokenizeAndPack, build, pack_dataset
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import build_options, texts, tiny_tokenizer
from tests.helpers.errors import refused

OPTIONS: dict[str, Any] = {"max_length": 64, "bos": "<s>", "eos": "</s>"}
COLUMNS = ["tokens", "position_ids", "cu_seqlens", "document_ids", "document_starts"]
small_batch = pytest.mark.filterwarnings("ignore:packing a batch")


@pytest.fixture
def dataset() -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": texts(80), "id": list(range(80))})


def built(tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    build(BuildConfig(**build_options(tmp_path, {"a.jsonl": texts(80)}, **options)))
    rows: list[dict[str, Any]] = datasets.load_from_disk(str(tmp_path / "out")).to_list()
    return rows


def mapped(dataset: Any, batch_size: int | None) -> Any:
    # As a worker process gets it.
    function = pickle.loads(pickle.dumps(TokenizeAndPack(tiny_tokenizer(), **OPTIONS)))
    settings = {"batched": True, "batch_size": batch_size, "with_indices": True}
    return dataset.map(function, remove_columns=dataset.column_names, **settings)


@pytest.mark.parametrize(
    ("strategy", "kind"), [("best_fit", "int32"), ("greedy", "uint16"), ("wrapped", "int32")]
)
def test_pack_dataset_gives_what_build_writes(
    dataset: datasets.Dataset, tmp_path: Path, strategy: str, kind: str
) -> None:
    more: dict[str, Any] = {"strategy": strategy, "token_type": kind}
    packed = pack_dataset(dataset, tiny_tokenizer(), **OPTIONS, **more)
    assert packed.column_names == COLUMNS
    assert {packed.features[name].feature.dtype for name in COLUMNS[:2]} == {kind}
    assert packed.to_list() == built(tmp_path, **more)


@small_batch
@pytest.mark.parametrize("kind", [None, "arrow"])
def test_in_a_map_over_the_whole_dataset_it_gives_what_pack_dataset_gives(
    dataset: datasets.Dataset, kind: str | None
) -> None:
    packed = mapped(dataset.with_format(kind), None).with_format(None)
    assert packed.to_list() == pack_dataset(dataset, tiny_tokenizer(), **OPTIONS).to_list()


def test_small_batches_pack_by_themselves_and_say_once_what_that_costs(
    dataset: datasets.Dataset,
) -> None:
    with pytest.warns(UserWarning, match="packing a batch of 20 documents by itself") as caught:
        packed = mapped(dataset, 20)
    assert len(caught) == 1
    for row in packed:
        assert len({document // 20 for document in row["document_ids"]}) == 1
    seen = {document for row in packed for document in row["document_ids"]}
    assert seen == {row for row, text in enumerate(texts(80)) if text}


def test_a_transformers_fast_tokenizer_brings_its_own_bos_and_eos(
    dataset: datasets.Dataset,
) -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(), bos_token="<s>", eos_token="</s>"
    )
    packed = pack_dataset(dataset, fast, max_length=64)
    assert packed.to_list() == pack_dataset(dataset, tiny_tokenizer(), **OPTIONS).to_list()


LONG = {"text": "word " * 200}


@pytest.mark.parametrize(
    ("rows", "more", "error", "words"),
    [
        ([LONG], {"shard_size": "1MB"}, ConfigError, "shard_size is an option of packprep.build"),
        ([LONG], {"append": True}, ConfigError, "append is an option of packprep.build"),
        ([LONG], {"stratgy": "greedy"}, ConfigError, "'stratgy'; did you mean 'strategy'"),
        ([], {}, InputError, "the dataset holds no rows; expected at least one document"),
        ([{"body": "a"}], {}, InputError, "the dataset has no column 'text'; it has body"),
        ([LONG, {"text": None}], {}, InputError, "row 1: the row has no 'text'"),
        ([{"text": "a"}, LONG], {"overflow": "error"}, InputError, "row 1 has "),
    ],
)
def test_what_cannot_be_packed_is_a_sentence(
    rows: list[Any], more: dict[str, Any], error: type[Exception], words: str
) -> None:
    kinds: list[Any] = [datasets.IterableDataset.from_generator(lambda: iter(rows))]
    if rows:
        kinds.append(datasets.Dataset.from_list(rows))
    for kind in kinds:
        with refused(error, words):
            list(pack_dataset(kind, tiny_tokenizer(), **OPTIONS, **more))


@small_batch
def test_bad_rows_are_skipped_and_groups_are_kept_apart_in_a_batch() -> None:
    skipping = TokenizeAndPack(tiny_tokenizer(), on_error="skip", **OPTIONS)
    assert skipping({"text": ["a", None, "b"]})["document_ids"] == [[0, 2]]
    with refused(InputError, "no column 'text'; it has body"):
        skipping({"body": ["a"]})
    grouped = TokenizeAndPack(tiny_tokenizer(), group_column="lang", **OPTIONS)
    for languages in (["x", "y", "x"], [1, 0, 1], [True, False, True]):
        packs = grouped({"text": ["a", "b", "c"], "lang": languages})["document_ids"]
        assert sorted(packs) == [[0, 2], [1]]
    strict = TokenizeAndPack(tiny_tokenizer(), overflow="error", **OPTIONS)
    with refused(InputError, "row 7 has ", "tokens but a pack holds 64"):
        strict({"text": [LONG["text"]]}, [7])


@pytest.mark.parametrize("known", [True, False])
def test_a_stream_is_packed_as_a_dataset_is(dataset: datasets.Dataset, known: bool) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for number, row in enumerate(dataset):
            yield row if number < 9 else {"text": row["text"], "another": 1}

    if known:
        stream = dataset.to_iterable_dataset(num_shards=2)
    else:
        stream = datasets.IterableDataset.from_generator(rows)
    assert (stream.column_names is None) == (not known)
    packed = pack_dataset(stream, tiny_tokenizer(), **OPTIONS)
    assert list(packed) == pack_dataset(dataset, tiny_tokenizer(), **OPTIONS).to_list()


def test_a_stream_of_conversations_keeps_tools_that_its_first_row_lacks(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}")
    rows = [
        {"messages": [{"role": "user", "content": "hi"}]} | more
        for more in ({}, {"tools": '[{"name": "f"}]'})
    ]
    stream = datasets.IterableDataset.from_generator(lambda: iter(rows))
    chats: dict[str, Any] = {"messages_column": "auto", "train_on": "all"}
    chats |= {"chat_template": str(template)}
    packed = list(pack_dataset(stream, tiny_tokenizer(), max_length=64, **chats))
    assert [tiny_tokenizer().decode(row["tokens"]) for row in packed] == ["hiNonehi[{'name': 'f'}]"]


@pytest.mark.parametrize("streaming", [False, True])
def test_every_split_of_a_dataset_dict_is_packed_by_itself(
    dataset: datasets.Dataset, streaming: bool
) -> None:
    splits = {"train": dataset, "test": dataset.select(range(20, 50))}
    expected = {
        split: pack_dataset(rows, tiny_tokenizer(), **OPTIONS).to_list()
        for split, rows in splits.items()
    }
    kind: Any = datasets.IterableDatasetDict if streaming else datasets.DatasetDict
    both = kind(
        {split: rows.to_iterable_dataset() if streaming else rows for split, rows in splits.items()}
    )
    packed = pack_dataset(both, tiny_tokenizer(), **OPTIONS)
    assert type(packed) is kind
    assert {split: list(rows) for split, rows in packed.items()} == expected
    bad = kind(both | {"test": both["test"].remove_columns("text")})
    with refused(InputError, "split test: the dataset has no column 'text'; it has id"):
        pack_dataset(bad, tiny_tokenizer(), **OPTIONS)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", [None, "numpy", "torch", "arrow"])
def test_packs_have_the_format_of_the_dataset(
    dataset: datasets.Dataset, kind: str | None, streaming: bool
) -> None:
    rows = (dataset.to_iterable_dataset() if streaming else dataset).with_format(kind)
    packed = pack_dataset(rows, tiny_tokenizer(), **OPTIONS)
    expected = pack_dataset(dataset, tiny_tokenizer(), **OPTIONS).with_format(kind)
    first, same = next(iter(packed)), next(iter(expected))
    assert type(first) is type(same)
    assert type(first["tokens"]) is type(same["tokens"])
    if kind in ("numpy", "torch"):
        assert first["tokens"].tolist() == same["tokens"].tolist()
    else:
        assert first == same
