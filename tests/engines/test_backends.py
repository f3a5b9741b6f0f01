"""Engines give the same ids in the promised form.

For every kind of batch and from many threads.
"""

from __future__ import annotations

import gzip
import importlib
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, pairwise
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from packprep.engines import backends, cut_points
from packprep.engines.backends import Engine, EngineName, HfEngine, load_engine
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import SHARED
from tests.helpers.examples import long_but

LINES = [
    "The quick brown fox jumps over the lazy dog, doesn't it?\nYes, it's 12345 times over.\n",
    "def encode(texts):\n    return [tokenize(text) for text in texts]  # one by one\n\n\n",
    "Größe, naïve café, 东京 and Москва; 今天天气很好。\n明天也好。\r\n",
    "  leading spaces,\ttabs, and      runs of them   \n",
]
REAL_TOKENIZERS = "bert_base_uncased gemma2 gpt2 llama3_2 mistral_nemo qwen3 t5_small"


def byte_level(
    pre_tokenizer: Any = None, normalizer: Any = None, vocabulary: int = 400
) -> Tokenizer:
    """A small byte-level BPE with a special token and a plain added token.

    Its post-processor adds the special one.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_tokens(["<mark>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|end|> $A", special_tokens=[("<|end|>", 0)]
    )
    return tokenizer


def sentencepiece() -> Tokenizer:
    """A BPE as SentencePiece makes them: no pre-tokenizer, spaces as ▁, byte fallback."""
    characters = sorted(set("".join(LINES)) - {" "} | {"▁"})
    vocabulary = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("o", "n"), ("i", "n"), ("e", "s"), ("▁", "▁")]
    vocabulary += ["".join(pair) for pair in merges]
    ids = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def as_bytes(tokenizer: Tokenizer) -> bytes:
    return str(tokenizer.to_str()).encode()


BYTE_LEVEL = as_bytes(byte_level())


def load(name: Any, tokenizer_json: bytes = BYTE_LEVEL, **options: Any) -> Engine:
    """The engine, or a skip where its package is not installed."""
    if name != "hf":
        pytest.importorskip(name, reason=f"{name} is not installed (pip install packprep[fast])")
    return load_engine(name, tokenizer_json, **options)


def documents(engine: Engine, texts: list[str]) -> list[list[int]]:
    ids, offsets = engine.encode(pa.array(texts, pa.string()))
    return [ids[start:stop].tolist() for start, stop in pairwise(offsets)]


def one_by_one(
    tokenizer_json: bytes, texts: list[str], *, parse_special_tokens: bool = False
) -> list[list[int]]:
    """The ids `tokenizers` gives without any of our code."""
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    tokenizer.encode_special_tokens = not parse_special_tokens
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]


ENGINES = get_args(EngineName)
every_engine = pytest.mark.parametrize("name", ENGINES)


@every_engine
def test_a_null_and_a_column_that_is_not_text_are_errors_that_say_so(name: str) -> None:
    engine = load(name)
    with pytest.raises(InputError, match="1 of 2 texts are null"):
        engine.encode(pa.array(["a", None]))
    with pytest.raises(InputError, match="takes string or large_string, not int64"):
        engine.encode(pa.array([1, 2]))


@every_engine
def test_many_threads_on_one_engine_get_the_ids_that_one_thread_gets(name: str) -> None:
    texts = [f"{line} {number} {line[number % 17 :]}" for number in range(40) for line in LINES]
    batches = [pa.array(texts[start::50]) for start in range(50)] * 4
    one = load(name)
    alone = [one.encode(batch) for batch in batches]
    engine = load(name)  # a fresh one: its caches fill while the threads run
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(engine.encode, batches))
    for encoded, expected in zip(together, alone, strict=True):
        assert [each.tolist() for each in encoded] == [each.tolist() for each in expected]


@every_engine
@pytest.mark.parametrize("content", [b'{"model": {"type": "nonsense"}}', b"not json at all"])
def test_a_file_that_is_no_tokenizer_is_a_sentence(name: str, content: bytes) -> None:
    with pytest.raises(InputError, match=r"cannot read this tokenizer\.json"):
        load(name, content)


@pytest.mark.parametrize("name", ["tiktoken", *ENGINES[1:]])
def test_an_engine_that_is_unknown_or_not_installed_says_what_to_choose_or_install(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(module: str) -> None:
        raise ImportError(module)

    monkeypatch.setattr(importlib, "import_module", missing)
    known = "choose one of hf, fastokens, gigatoken"
    words = known if name == "tiktoken" else rf"package {name}: pip install packprep\[fast\]"
    with pytest.raises(ConfigError, match=rf"{name}.*{words}"):
        load_engine(name, BYTE_LEVEL)


def test_an_id_past_int32_is_an_error_and_not_a_negative_number() -> None:
    assert backends.as_int32(np.array([0, 2**31 - 1], np.uint32)).tolist() == [0, 2**31 - 1]
    with pytest.raises(InputError, match="the id 2,147,483,648; ids must be below 2,147,483,648"):
        backends.as_int32(np.array([0, 2**31], np.uint32))


def test_added_tokens_are_read_without_the_model_and_specials_alone_are_taken_out() -> None:
    added = [(token["content"], token["special"]) for token in backends.added_tokens(BYTE_LEVEL)]
    assert added == [("<|end|>", True), ("<mark>", False)]
    rest = json.loads(backends._without_specials(BYTE_LEVEL.decode()))
    whole = json.loads(BYTE_LEVEL)
    assert [token["content"] for token in rest.pop("added_tokens")] == ["<mark>"]
    whole.pop("added_tokens")
    assert rest == whole
    trap = r'{"model": {"vocab": {"\"added_tokens\": [": 1, "added_tokens": 2}}, '
    trap += '"added_tokens" : [{"id": 3, "content": "x"}]}'
    assert backends.added_tokens(trap.encode()) == [{"id": 3, "content": "x"}]
    assert backends.added_tokens(b'{"model": {}}') == []
    assert backends._without_specials('{"model": {}}') == '{"model": {}}'


# The reference takes text in bounded pieces.


class Watched:
    """A tokenizer that notes how many texts and characters each call was given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.calls: list[tuple[int, int]] = []

    def encode_batch_fast(self, texts: list[str], **options: Any) -> Any:
        self.calls.append((len(texts), sum(map(len, texts))))
        return self.tokenizer.encode_batch_fast(texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)


def test_no_call_of_tokenizers_holds_more_than_a_sub_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny documents by the thousand and one long document.

    What `tokenizers` holds at once stays the same.
    """
    monkeypatch.setattr(backends, "SUB_BATCH", 4000)
    monkeypatch.setattr(backends, "SUB_BATCH_PIECES", 500)
    monkeypatch.setattr(backends, "PIECE_BYTES", 1000)
    engine = HfEngine(BYTE_LEVEL)
    watched = Watched(engine._tokenizer)
    engine._tokenizer = watched
    texts = ["x"] * 3000 + ["".join(LINES) * 400] + ["", "end"]
    assert documents(engine, texts) == one_by_one(BYTE_LEVEL, texts)
    assert engine.notes == []
    assert max(count for count, _ in watched.calls) == 500
    assert max(size for _, size in watched.calls) < 4000 + 500 + 2 * max(map(len, LINES))
    assert sum(size for _, size in watched.calls) == sum(map(len, texts))


def test_a_long_document_that_cannot_be_cut_is_encoded_whole_and_that_is_said_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "PIECE_BYTES", 200)
    tokenizer_json = as_bytes(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)))
    engine = HfEngine(tokenizer_json)
    texts = ["".join(LINES), "short", "".join(LINES) * 2]
    for _ in range(2):
        assert documents(engine, texts) == one_by_one(tokenizer_json, texts)
    (note,) = engine.notes
    assert note.startswith("documents over 200 bytes are encoded whole and on one core: ")
    assert "ByteLevel treats the start of a text apart" in note


# Cuts: where a long document falls apart without changing an id.


def split_then_bytes(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, plain])


def word_piece(normalizer: Any = None) -> Tokenizer:
    letters = sorted(set("".join(LINES).lower()) - set(" \n\r\t"))
    later = [f"##{letter}" for letter in letters]
    tokens = ["[UNK]", "[CLS]", *letters, *later, "the", "fox", "##es"]
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizer or normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[CLS]"])
    return tokenizer


def unigram() -> Tokenizer:
    letters = sorted(set("".join(LINES)) - set(" \n\r\t"))
    pieces = [("<unk>", 0.0), ("▁", -2.0), *((letter, -4.0) for letter in letters)]
    pieces += [("▁the", -1.0), ("es", -2.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    return tokenizer


CUTTABLE: dict[str, Callable[[], Tokenizer]] = {
    **{
        f"pattern {number}": partial(byte_level, split_then_bytes(pattern))
        for number, pattern in enumerate(sorted(cut_points._PATTERNS))
    },
    "byte level": byte_level,
    "NFC": lambda: byte_level(normalizer=normalizers.NFC()),
    "NFKC": lambda: byte_level(normalizer=normalizers.NFKC()),
    "sentencepiece": sentencepiece,
    "word piece": word_piece,
    "unigram": unigram,
}


TEXTS = [*"aB1 \n\r.\t中。é/\0🙂\u3000", "'s", "e\u0301", "<|end|>", "<mark>", "end.\nNext", "1\na"]
TEXTS += ["中。\n明", "é\nz", "x\nit's"]
texts_of = st.lists(st.lists(st.sampled_from(TEXTS), max_size=25).map("".join), max_size=6)
READ_BY_ALL = [
    (kind, name) for kind in ("byte level", "NFC", "sentencepiece") for name in ENGINES[1:]
]


@pytest.mark.parametrize(("kind", "name"), [*((kind, "hf") for kind in CUTTABLE), *READ_BY_ALL])
def test_ids_are_those_of_tokenizers_one_by_one_whole_and_in_pieces(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_json = as_bytes(CUTTABLE[kind]())
    assert cut_points.why_not(Tokenizer.from_buffer(tokenizer_json)) is None
    engine = load(name, tokenizer_json)

    @given(texts=texts_of, start=st.integers(0, 3), wide=st.booleans(), size=st.integers(1, 40))
    def law(texts: list[str], start: int, wide: bool, size: int) -> None:
        """Of any slice; flat int32, and int64 offsets with one entry more than documents."""
        monkeypatch.setattr(backends, "PIECE_BYTES", size)
        array = pa.array(texts, pa.large_string() if wide else pa.string())
        ids, offsets = engine.encode(array.slice(start))
        assert (str(ids.dtype), ids.ndim, str(offsets.dtype)) == ("int32", 1, "int64")
        lists = [ids[first:last].tolist() for first, last in pairwise(offsets)]
        assert (offsets[0], offsets[-1]) == (0, len(ids))
        assert lists == one_by_one(tokenizer_json, texts[start:])
        assert all("".join(pieces_of(text, size)) == text for text in texts)

    law()
    assert engine.notes == []


def pieces_of(text: str, size: int = 1) -> list[str]:
    return [
        str(piece, "utf-8") for piece in cut_points.text_pieces(memoryview(text.encode()), size)
    ]


def with_added(**options: Any) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens([tokenizers.AddedToken(**options)])
    return tokenizer


def with_line_feed_merge() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"\n": 0, "a": 1, "\na": 2}, [("\n", "a")]))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    return tokenizer


_BERT_THEN = [normalizers.BertNormalizer(), normalizers.Replace(" ", "▁")]
_ENDS, _PIECE = "may change the ends", "not one known to end a piece"
NORMALIZERS = (
    *(normalizers.Prepend("▁"), normalizers.Strip(), normalizers.BertNormalizer()),
    *(normalizers.Replace(Regex(r"\s+"), " "), normalizers.Replace("_", " ")),
)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        *((partial(byte_level, normalizer=n), f"{type(n).__name__} may") for n in NORMALIZERS),
        (partial(word_piece, normalizers.Sequence(_BERT_THEN)), f"BertNormalizer {_ENDS}"),
        (partial(with_added, content="end\nNext"), r"token 'end\\nNext' can reach over a line end"),
        (partial(with_added, content="<left>", lstrip=True), "'<left>' can reach over a line end"),
        (partial(byte_level, split_then_bytes(r"\n\w+|\w+|\s")), f"{_PIECE} at a line end"),
        (
            partial(byte_level, pre_tokenizers.Metaspace(prepend_scheme="first")),
            "treats the start of a text apart",
        ),
        (lambda: Tokenizer(models.BPE({"\n": 0}, [], ignore_merges=True)), _PIECE),
        (lambda: Tokenizer(models.BPE({"\n": 0}, [], end_of_word_suffix="</w>")), _PIECE),
        (with_line_feed_merge, r"vocabulary entry '\\na' reaches over a line end"),
        (lambda: Tokenizer(models.BPE({"a": 0}, [])), "it has no line feed token"),
        (lambda: Tokenizer(models.BPE({"a": 0}, [], dropout=0.1)), "its BPE has dropout"),
    ],
)
def test_a_cut_that_is_not_proven_is_refused_with_the_reason(
    make: Callable[[], Tokenizer], reason: str
) -> None:
    assert re.search(reason, str(cut_points.why_not(make())))


# The real tokenizers.


SHORT = ("gpt2", "t5_small")


@pytest.mark.long
@pytest.mark.parametrize("tokenizer", long_but(SHORT, REAL_TOKENIZERS.split()))
def test_real_tokenizers_give_the_same_ids_for_books_in_pieces(
    tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer_json = (SHARED / "tokenizers" / tokenizer / "tokenizer.json").read_bytes()
    engine, texts = HfEngine(tokenizer_json), []
    for corpus in ("books", "pydocs_zh", "udhr"):
        with gzip.open(SHARED / "text" / f"{corpus}.jsonl.gz", "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"][:200_000] for line in islice(lines, 4)]
    monkeypatch.setattr(backends, "PIECE_BYTES", 1_000_000)
    whole = documents(engine, texts)
    monkeypatch.setattr(backends, "PIECE_BYTES", 1000)
    assert documents(engine, texts) == whole
    assert engine.notes == []
