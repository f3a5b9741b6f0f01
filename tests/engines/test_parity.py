"""The parity gate and the check during a build.

A wrong id is found wherever it is planted, and named.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packprep.engines import sweep
from packprep.engines.backends import Engine, HfEngine, Ids, Offsets, added_tokens, load_engine
from packprep.engines.compare import first_difference, unequal
from packprep.engines.parity import LARGE_TOKENIZER, choose_engine, trusted_engine, verify_batch
from packprep.engines.probes import probes
from packprep.support.errors import ConfigError, InputError, PackprepError
from tests.helpers.corpus import SHARED
from tests.helpers.examples import long_but

from .test_backends import BYTE_LEVEL, ENGINES, REAL_TOKENIZERS

FAST = ENGINES[1:]

ALPHABETS = ((0x80, 0x250), (0x300, 0x310), (0x1D00, 0x1D30))  # that a sweep of these tests tries
TOKENIZERS = long_but(["gpt2", "t5_small"], REAL_TOKENIZERS.split())
PROBES = [*"\u088f\U0001e6c0\u3000\0\u212b１", "<|end|>", "漢字", "\n\n\n", "straße", "'lL"]
PROBES += ["👩🏽\u200d🚀"]


class Wrong(HfEngine):
    """The reference with one id changed in every document that `spoils` picks.

    Stands for a faulty fast engine.
    """

    name = "fastokens"

    def __init__(self, spoils: Callable[[str], bool], tokenizer_json: bytes = BYTE_LEVEL) -> None:
        super().__init__(tokenizer_json)
        self.version = "0.0"
        self.spoils = spoils

    def with_tokenizer(self, tokenizer_json: bytes) -> Wrong:
        return type(self)(self.spoils, tokenizer_json)

    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        ids, offsets = super().encode(texts)
        ids = ids.copy()
        for row, text in enumerate(cast(list[str], texts.to_pylist())):
            if self.spoils(text) and offsets[row] < offsets[row + 1]:
                ids[offsets[row + 1] - 1] += 1
        return ids, offsets


class Failing(Wrong):
    def encode(self, texts: pa.Array[Any]) -> tuple[Ids, Offsets]:
        raise InputError("fastokens 0.0 cannot encode a text: match limit exceeded")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the engines the gate loads, in order."""
    names: list[str] = []

    def counted(name: Any, *arguments: Any, **options: Any) -> Engine:
        names.append(name)
        return load_engine(name, *arguments, **options)

    monkeypatch.setattr("packprep.engines.parity.load_engine", counted)
    return names


@pytest.fixture
def planted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[Engine | Exception], None]:
    """Puts an engine, or the failure to load one, in the place of fastokens.

    Gigatoken is not installed. The sweep tries a few alphabets, and its results are not kept.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sweep, "find_guard", partial(sweep.find_guard, spans=ALPHABETS))

    def plant(engine: Engine | Exception) -> None:
        def loaded(name: Any, tokenizer_json: bytes, **options: Any) -> Engine:
            if name == "hf":
                return load_engine(name, tokenizer_json, **options)
            if name == "gigatoken":
                raise ConfigError("engine gigatoken needs a package: pip install packprep[fast]")
            if isinstance(engine, Exception):
                raise engine
            return engine.with_tokenizer(tokenizer_json) if isinstance(engine, Wrong) else engine

        monkeypatch.setattr("packprep.engines.parity.load_engine", loaded)

    return plant


# The gate.


CHARACTERS = "\u017f\u00e9\u0306\u1d2b\u0149"
PLAIN, MUCH = ["plain text"] * 300, ["plain text, and more of it"] * 97 + ["un café"] * 3
NOT_INSTALLED = ConfigError("engine fastokens needs the package: pip install packprep[fast]")
# A text that the planted engine gets wrong, the sample, and what the gate takes, finds and says.
GATE: list[tuple[Any, list[str], str, str, str]] = [
    (None, ["a real document", "and another"], "fastokens", "equal", ""),
    *((probe, [], "hf", "different", f"on the text {probe!a} it gives [") for probe in PROBES),
    *((letter, PLAIN, "hf", "different", "gives other ids") for letter in "eQs7'\n"),
    *(
        (each, [*PLAIN, f"one {each}"], "fastokens", "guarded", "with 1 certain character")
        for each in CHARACTERS
    ),
    ("xyzzy", [], "fastokens", "equal", ""),
    ("xyzzy", ["plain", "say xyzzy, then wait"], "hf", "different", "the text 'xyzzy' it gives"),
    ("\U000f1234", [], "fastokens", "equal", ""),  # no sweep tries it
    ("é", MUCH[:98], "fastokens", "guarded", "with 1 certain character"),
    ("é", [*MUCH, "deux cafés, et plus de texte"], "hf", "different", "2.1% of the first ones"),
    (Failing(lambda text: False), [], "hf", "different", "match limit exceeded; tokenizers itself"),
    (NOT_INSTALLED, [], "hf", "no fast engine", "no fast engine is installed (pip install"),
]


@pytest.mark.parametrize(("wrong", "sample", "name", "verdict", "words"), GATE)
def test_an_engine_is_taken_if_its_ids_are_those_of_the_reference_but_for_a_few_characters(
    wrong: Any,
    sample: list[str],
    name: str,
    verdict: str,
    words: str,
    planted: Callable[[Engine | Exception], None],
) -> None:
    is_text = wrong is None or isinstance(wrong, str)
    planted(Wrong(lambda text: wrong is not None and wrong in text) if is_text else wrong)
    choice = choose_engine("auto", BYTE_LEVEL, sample=sample)
    assert (choice.engine.name, choice.gate["verdict"]) == (name, verdict)
    assert len(choice.notes) == bool(words)
    assert all(words in note and "\n" not in note for note in choice.notes)
    if name == "hf":
        assert choice.engine is choice.reference()
        with pytest.raises(PackprepError, match=r"use --engine hf or auto|limit exceeded|install"):
            choose_engine("fastokens", BYTE_LEVEL, sample=sample)
        return
    gate = {"engine": "fastokens", "version": "0.0", "sample_documents": len(sample)}
    gate |= {"probes": len(probes(added_tokens(BYTE_LEVEL)))}
    gate |= {"guard": f"{ord(wrong):X}"} if verdict == "guarded" else {}
    assert {key: choice.gate[key] for key in gate} == gate
    # Another process loads the chosen engine with its guard.
    chosen = json.loads(json.dumps(choice.as_dict()))
    again = trusted_engine(chosen, BYTE_LEVEL)
    assert again.as_dict() == choice.as_dict() == chosen
    place = wrong if wrong != "xyzzy" else "a"
    texts = ["the fox", f"a{place}b isn't", "", f"'{place}", "the fox", f"{place}"]
    array, reference = pa.array(texts), HfEngine(BYTE_LEVEL)
    for each in (choice, again):
        ids, offsets = each.engine.encode(array)
        assert unequal(ids, offsets, *reference.encode(array)).tolist() == []
        rows = (ids, offsets, array, np.arange(6))
        compared = verify_batch(each.engine, *rows, choice.reference, share=1.0)
        assert len(compared) == len(texts)


def test_the_reference_is_trusted_without_a_guard() -> None:
    assert trusted_engine({"engine": "hf", "guard": ""}, BYTE_LEVEL).engine.name == "hf"


def test_a_guard_is_found_once_and_then_read_from_the_cache(
    planted: Callable[[Engine], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted(Wrong(lambda text: "\u017f" in text))
    assert choose_engine("auto", BYTE_LEVEL).gate["guard"] == "17F"
    (cached,) = (tmp_path / "packprep" / "guards").iterdir()
    assert cached.read_text() == "17F\n"
    sweeps: list[Engine] = []
    monkeypatch.setattr(sweep, "find_guard", lambda fast, reference: sweeps.append(fast))
    assert choose_engine("auto", BYTE_LEVEL).gate["guard"] == "17F"
    assert sweeps == []
    cached.write_text("17F")  # cut short
    choose_engine("auto", BYTE_LEVEL)
    assert len(sweeps) == 1


def test_the_difference_shown_is_the_shortest_text_found() -> None:
    wrong = Wrong(lambda text: "ix" in text)
    reference = HfEngine(BYTE_LEVEL)
    texts = ["fine", "a" * 500 + "the matrix is here" + "b" * 700]
    found = first_difference(wrong, reference, texts)
    assert found is not None
    assert found.text == "ix"
    assert found.expected == reference.encode(pa.array(["ix"]))[0].tolist()
    assert first_difference(wrong, reference, ["fine", "a" * 500]) is None


Lists = list[list[int]]


def lists_as_arrays(documents: Lists) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    ids = np.array([token for document in documents for token in document], np.int32)
    return ids, np.cumsum([0, *map(len, documents)], dtype=np.int64)


encoded = st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1, max_size=8)


@given(one=encoded, other=encoded)
def test_differing_documents_are_those_whose_lists_of_ids_differ(one: Lists, other: Lists) -> None:
    found = unequal(*lists_as_arrays(one), *lists_as_arrays(other)).tolist()
    # Results for another number of documents differ throughout.
    same = len(one) == len(other)
    rows = range(len(other))
    assert found == [row for row in rows if not same or one[row] != other[row]]


def test_ids_that_end_before_the_last_document_differ() -> None:
    ids, offsets = lists_as_arrays([[1], [2, 3]])
    assert unequal(ids[:2], offsets, ids, offsets).tolist() == [0, 1]


# The check during a build.


def encode_rows(engine: Engine, texts: list[str]) -> tuple[Ids, Offsets, pa.Array[Any]]:
    array = pa.array(texts)
    return (*engine.encode(array), array)


def test_a_document_cut_short_and_a_document_missing_are_found() -> None:
    reference = HfEngine(BYTE_LEVEL)
    engine = Wrong(lambda text: False)
    ids, offsets, texts = encode_rows(engine, ["the fox", "is here"])
    numbers = np.array([3, 9])
    short = offsets.copy()
    short[2] -= 1
    with pytest.raises(InputError, match="document 9: from token"):
        verify_batch(engine, ids[:-1], short, texts, numbers, lambda: reference, share=1.0)
    with pytest.raises(InputError, match=r"returned 1 results for 2 documents"):
        verify_batch(engine, ids, offsets[:2], texts, numbers, lambda: reference, share=1.0)


def test_the_reference_is_not_even_loaded_where_no_document_is_chosen() -> None:
    def never() -> Engine:
        raise AssertionError("loaded")

    engine = Wrong(lambda text: False)
    ids, offsets, texts = encode_rows(engine, ["the fox", "is here"])
    rows = (ids, offsets, texts, np.arange(2))
    assert not len(verify_batch(engine, *rows, never, share=0.0))
    assert not len(verify_batch(HfEngine(BYTE_LEVEL), *rows, never, share=1.0))


# The real tokenizers and real text.


@pytest.fixture(scope="module")
def real_texts() -> list[str]:
    """Some documents of every corpus, spread over it: 600 kB."""
    texts: list[str] = []
    for path in sorted((SHARED / "text").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = lines.readlines()
        for row in rows[:: max(1, len(rows) // 12)]:
            fields = json.loads(row)
            text = fields["text"] if "text" in fields else json.dumps(fields["messages"])
            texts.append(text[:5000])
    return texts


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_engines_that_read_a_real_tokenizer_give_the_ids_of_the_reference_and_auto_takes_the_faster(
    tokenizer: str, real_texts: list[str]
) -> None:
    for package in FAST:
        pytest.importorskip(package, reason=f"{package} is not installed")
    tokenizer_json = (SHARED / "tokenizers" / tokenizer / "tokenizer.json").read_bytes()
    engine = {"bert_base_uncased": "hf", "t5_small": "hf", "gemma2": "gigatoken"}.get(
        tokenizer, "gigatoken" if len(tokenizer_json) > LARGE_TOKENIZER else "fastokens"
    )
    choice = choose_engine("auto", tokenizer_json, sample=real_texts)
    assert choice.engine.name == engine
    if engine == "hf":  # Unigram and WordPiece
        assert choice.gate["verdict"] == "no fast engine"
        assert "cannot read this tokenizer.json" in choice.notes[0]
    assert len(choice.notes) == (engine == "hf" or choice.gate["verdict"] == "guarded")
    array = pa.array(real_texts)
    expected = HfEngine(tokenizer_json).encode(array)
    for name in FAST:
        if engine == "hf":
            with pytest.raises(InputError, match=rf"{name} .* cannot read this tokenizer\.json"):
                choose_engine(name, tokenizer_json)
        else:
            found = load_engine(name, tokenizer_json).encode(array)
            assert unequal(*found, *expected).tolist() == []
