"""The parity gate and the check during a build.

A wrong id is found wherever it is planted, and named.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from packprep.engines import sweep
from packprep.engines.backends import Engine, HfEngine, Ids, Offsets, added_tokens, load_engine
from packprep.engines.compare import first_difference, unequal
from packprep.engines.parity import LARGE_TOKENIZER, choose_engine, trusted_engine, verify_batch
from packprep.engines.probes import probes
from packprep.support.errors import ConfigError, InputError
from packprep.support.hashing import Purpose, drawn, stream
from tests.helpers.corpus import SHARED
from tests.helpers.examples import long_but

from .test_backends import ENGINES, REAL_TOKENIZERS

FAST = ENGINES[1:]

# Kirat Rai, Garay, Nag Mundari, CJK extension H and an Arabic letter
UNASSIGNED_IN_UNICODE_14 = [
    *((0x88F, 0x890), (0x16D40, 0x16D7A), (0x10D40, 0x10D90), (0x1E4D0, 0x1E4FA)),
    (0x31350, 0x323B0),
]
ALPHABETS = ((0x80, 0x250), (0x300, 0x310), (0x1D00, 0x1D30))  # that a sweep of these tests tries
TOKENIZERS = long_but(["gpt2", "t5_small"], REAL_TOKENIZERS.split())
PROBES = [*"\u088f\U0001e6c0\u3000\0\u212b１", "<|end|>", "漢字", "\n\n\n", "straße", "'lL"]
PROBES += ["👩🏽\u200d🚀"]


def small_tokenizer() -> bytes:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["the quick brown fox isn't here, it's there\n" * 3], trainer)
    return str(tokenizer.to_str()).encode()


SMALL = small_tokenizer()


class Wrong(HfEngine):
    """The reference with one id changed in every document that `spoils` picks.

    Stands for a faulty fast engine.
    """

    name = "fastokens"

    def __init__(self, spoils: Callable[[str], bool], tokenizer_json: bytes = SMALL) -> None:
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


def test_an_engine_that_agrees_on_everything_is_taken_and_the_gate_says_what_was_compared(
    planted: Callable[[Engine], None],
) -> None:
    planted(Wrong(lambda text: False))
    choice = choose_engine("auto", SMALL, sample=["a real document", "and another"])
    assert choice.engine.name == "fastokens"
    assert choice.notes == []
    gate = choice.gate
    assert (gate["engine"], gate["version"], gate["verdict"]) == ("fastokens", "0.0", "equal")
    assert gate["probes"] == len(probes(added_tokens(SMALL)))
    assert gate["sample_documents"] == 2
    assert json.loads(json.dumps(gate)) == gate


def same_ids(choice: Any, texts: list[str]) -> bool:
    """True if the chosen engine gives the ids of the reference."""
    array = pa.array(texts)
    ids, offsets = choice.engine.encode(array)
    return not len(unequal(ids, offsets, *HfEngine(SMALL).encode(array)))


@pytest.mark.parametrize("probe", PROBES)
def test_a_difference_planted_on_a_probe_is_caught_and_the_reference_taken(
    probe: str, planted: Callable[[Engine], None]
) -> None:
    planted(Wrong(lambda text: probe in text))
    choice = choose_engine("auto", SMALL)
    assert choice.engine.name == "hf"
    assert choice.engine is choice.reference()
    assert (choice.gate["verdict"], choice.gate["rejected"]) == ("different", "fastokens 0.0")
    (note,) = choice.notes
    assert f"on the text {probe!a} it gives [" in note
    assert "\n" not in note


def test_a_difference_only_in_the_sampled_documents_is_caught_too(
    planted: Callable[[Engine], None],
) -> None:
    planted(Wrong(lambda text: "xyzzy" in text))
    assert choose_engine("auto", SMALL).engine.name == "fastokens"
    choice = choose_engine("auto", SMALL, sample=["plain", "say xyzzy, then wait", "plain"])
    assert choice.engine.name == "hf"
    assert "on the text 'xyzzy' it gives" in choice.notes[0]


@pytest.mark.parametrize("character", ["\u017f", "\u00e9", "\u0306", "\u1d2b", "\u0149"])
def test_texts_with_the_one_character_that_differs_go_to_the_reference(
    character: str, planted: Callable[[Engine], None]
) -> None:
    planted(Wrong(lambda text: character in text))
    choice = choose_engine("auto", SMALL, sample=["plain text"] * 300 + [f"one {character}"])
    assert (choice.engine.name, choice.gate["verdict"]) == ("fastokens", "guarded")
    assert choice.gate["guard"] == f"{ord(character):X}"
    (note,) = choice.notes
    assert "tokenizers the documents with 1 certain character" in note
    texts = ["the fox", f"a{character}b isn't", "", f"'{character}", "the fox", character]
    assert same_ids(choice, texts)
    rows = encode_rows(choice.engine, texts)
    assert verify_batch(choice.engine, *rows, np.arange(6), choice.reference, share=1.0) == 6


@pytest.mark.parametrize("letter", ["e", "Q", "s", "7", "'", "\n"])
def test_an_engine_that_differs_on_ordinary_letters_is_refused(
    letter: str, planted: Callable[[Engine], None]
) -> None:
    planted(Wrong(lambda text: letter in text))
    choice = choose_engine("auto", SMALL, sample=["plain text"])
    assert (choice.engine.name, choice.gate["verdict"]) == ("hf", "different")
    with pytest.raises(InputError, match=r"fastokens 0\.0 gives other ids .*use --engine hf or"):
        choose_engine("fastokens", SMALL)


def test_a_code_point_that_no_sweep_tries_goes_to_the_reference(
    planted: Callable[[Engine], None],
) -> None:
    planted(Wrong(lambda text: "\U000f1234" in text))
    choice = choose_engine("auto", SMALL)
    assert (choice.engine.name, choice.gate["verdict"]) == ("fastokens", "equal")
    assert same_ids(choice, ["the fox", "icon \U000f1234"])


def test_an_engine_that_would_send_much_of_the_text_to_the_reference_is_refused(
    planted: Callable[[Engine], None],
) -> None:
    planted(Wrong(lambda text: "é" in text))
    sample = ["plain text, and more of it"] * 97 + ["un café"] * 3
    assert choose_engine("auto", SMALL, sample=sample[:98]).engine.name == "fastokens"
    choice = choose_engine("auto", SMALL, sample=[*sample, "deux cafés, et plus de texte"])
    assert choice.engine.name == "hf"
    assert "with 1 certain character, 2.1% of the first ones" in choice.notes[0]


def test_another_process_loads_the_chosen_engine_with_its_guard(
    planted: Callable[[Engine], None],
) -> None:
    planted(Wrong(lambda text: "\u017f" in text))
    chosen = choose_engine("auto", SMALL).as_dict()
    again = trusted_engine(json.loads(json.dumps(chosen)), SMALL)
    assert again.as_dict() == chosen
    assert same_ids(again, ["the fox", "I'\u017fa"])
    assert trusted_engine({"engine": "hf", "guard": ""}, SMALL).engine.name == "hf"


def test_a_guard_is_found_once_and_then_read_from_the_cache(
    planted: Callable[[Engine], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planted(Wrong(lambda text: "\u017f" in text))
    assert choose_engine("auto", SMALL).gate["guard"] == "17F"
    (cached,) = (tmp_path / "packprep" / "guards").iterdir()
    assert cached.read_text() == "17F\n"
    sweeps: list[Engine] = []
    monkeypatch.setattr(sweep, "find_guard", lambda fast, reference: sweeps.append(fast))
    assert choose_engine("auto", SMALL).gate["guard"] == "17F"
    assert sweeps == []
    cached.write_text("17F")  # cut short
    choose_engine("auto", SMALL)
    assert len(sweeps) == 1


def test_an_engine_that_fails_on_a_probe_is_not_taken(planted: Callable[[Engine], None]) -> None:
    planted(Failing(lambda text: False))
    choice = choose_engine("auto", SMALL)
    assert choice.engine.name == "hf"
    assert "match limit exceeded; tokenizers itself tokenizes" in choice.notes[0]
    with pytest.raises(InputError, match="match limit exceeded"):
        choose_engine("fastokens", SMALL)


def test_without_a_fast_engine_auto_is_the_reference_with_one_note_and_a_name_is_an_error(
    planted: Callable[[Exception], None],
) -> None:
    planted(ConfigError("engine fastokens needs the package fastokens: pip install packprep[fast]"))
    choice = choose_engine("auto", SMALL)
    assert choice.engine.name == "hf"
    expected = {"engine": "hf", "version": choice.engine.version, "verdict": "no fast engine"}
    assert choice.gate == expected
    (note,) = choice.notes
    assert "no fast engine is installed (pip install packprep[fast])" in note
    with pytest.raises(ConfigError, match="pip install packprep"):
        choose_engine("gigatoken", SMALL)


METASPACE, BERT = pre_tokenizers.Metaspace(), pre_tokenizers.BertPreTokenizer()
UNIGRAM = models.Unigram([("<unk>", 0.0), ("▁", -1.0), ("a", -2.0)], unk_id=0)
WORD_PIECE = models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]")


@pytest.mark.parametrize(("model", "pre_tokenizer"), [(UNIGRAM, METASPACE), (WORD_PIECE, BERT)])
def test_unigram_and_word_piece_fall_back_to_the_reference_with_a_note(
    model: Any, pre_tokenizer: Any
) -> None:
    for package in FAST:
        pytest.importorskip(package, reason=f"{package} is not installed")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer_json = str(tokenizer.to_str()).encode()
    choice = choose_engine("auto", tokenizer_json)
    assert (choice.engine.name, choice.gate["verdict"]) == ("hf", "no fast engine")
    assert len(choice.notes) == 1
    assert "cannot read this tokenizer.json" in choice.notes[0]
    with pytest.raises(InputError, match=r"fastokens .* cannot read this tokenizer\.json"):
        choose_engine("fastokens", tokenizer_json)


def test_the_reference_is_loaded_once_for_the_gate_the_checks_and_every_thread(
    loads: list[str],
) -> None:
    choice = choose_engine("auto", SMALL)
    with ThreadPoolExecutor(4) as pool:
        assert len({*map(id, pool.map(lambda _: choice.reference(), range(16)))}) == 1
    assert loads.count("hf") == 1
    assert choose_engine("hf", SMALL).gate["verdict"] == "reference"
    assert loads.count("hf") == 2


def test_the_difference_shown_is_the_shortest_text_found() -> None:
    wrong = Wrong(lambda text: "ix" in text)
    reference = HfEngine(SMALL)
    texts = ["fine", "a" * 500 + "the matrix is here" + "b" * 700]
    found = first_difference(wrong, reference, texts)
    assert found is not None
    assert found.text == "ix"
    assert found.expected == reference.encode(pa.array(["ix"]))[0].tolist()
    assert first_difference(wrong, reference, ["fine", "a" * 500]) is None


def lists_as_arrays(
    documents: Sequence[Sequence[int]],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    ids = np.array([token for document in documents for token in document], np.int32)
    return ids, np.cumsum([0, *map(len, documents)], dtype=np.int64)


encoded = st.lists(st.lists(st.integers(0, 2), max_size=3), min_size=1, max_size=8)


@given(mine=encoded, theirs=encoded)
def test_differing_documents_are_those_whose_lists_of_ids_differ(
    mine: list[list[int]], theirs: list[list[int]]
) -> None:
    shorter = min(len(mine), len(theirs))
    mine, theirs = mine[:shorter], theirs[:shorter]
    expected = [row for row in range(shorter) if mine[row] != theirs[row]]
    assert unequal(*lists_as_arrays(mine), *lists_as_arrays(theirs)).tolist() == expected


def test_results_for_another_number_of_documents_differ_throughout() -> None:
    assert unequal(*lists_as_arrays([[1]]), *lists_as_arrays([[1], []])).tolist() == [0, 1]
    ids, offsets = lists_as_arrays([[1], [2, 3]])
    assert unequal(ids[:2], offsets, ids, offsets).tolist() == [0, 1]


# The probes.


def test_probes_are_always_the_same_bounded_and_hold_what_they_promise() -> None:
    tokens = [{"content": "<|im_start|>", "special": True}, {"content": "<tool>", "special": False}]
    texts = probes(tokens)
    assert texts == probes(tokens)
    assert all(text.encode().decode() == text for text in texts)  # no lone surrogates
    assert sum(len(text.encode()) for text in texts) < 300_000
    everything = "".join(texts)
    assert set(map(chr, range(0x80, 0x2000))) <= set(everything)
    assert len(set(everything)) > 20_000
    for span in UNASSIGNED_IN_UNICODE_14:
        assert any(chr(point) in everything for point in range(*span))
    assert "" in texts
    spelled = ("a<|im_start|>b", "<|im_start|><|im_start|>", "<|im_start|", "|im_start|>", "<TOOL>")
    assert all(spelling in everything for spelling in (*spelled, "a<tool>b"))


def test_thousands_of_added_tokens_do_not_make_the_probes_large() -> None:
    reserved = [{"content": f"<reserved_{n}>", "special": n % 2 == 0} for n in range(20_000)]
    assert sum(len(text.encode()) for text in probes(reserved)) < 350_000


# The check during a build.


def encode_rows(engine: Engine, texts: list[str]) -> tuple[Ids, Offsets, pa.Array[Any]]:
    array = pa.array(texts)
    return (*engine.encode(array), array)


def test_one_wrong_id_in_one_document_of_ten_thousand_is_found_and_the_document_named() -> None:
    reference = HfEngine(SMALL)
    texts = [f"document {number} about the fox" for number in range(10_000)]
    wrong = Wrong(lambda text: text.startswith("document 7041 "))
    first = 500_000  # the batch stands somewhere in the middle of a build
    numbers = np.arange(first, first + len(texts))
    words = (
        r"document 507041: from token \d+ on engine fastokens 0\.0 gave \[\d+\] and hf .*\[\d+\]"
    )
    with pytest.raises(InputError, match=words):
        verify_batch(wrong, *encode_rows(wrong, texts), numbers, lambda: reference, share=1.0)
    right = Wrong(lambda text: False)
    rows = encode_rows(right, texts)
    assert verify_batch(right, *rows, numbers, lambda: reference, share=1.0) == 10_000


def test_a_document_cut_short_and_a_document_missing_are_found() -> None:
    reference = HfEngine(SMALL)
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
    assert verify_batch(engine, ids, offsets, texts, np.arange(2), never, share=0.0) == 0
    assert verify_batch(HfEngine(SMALL), ids, offsets, texts, np.arange(2), never, share=1.0) == 0


@given(
    seed=st.integers(0, 2**64 - 1),
    share=st.floats(0, 1),
    cuts=st.lists(st.integers(0, 300), max_size=6),
    start=st.integers(0, 2**40),
)
def test_which_documents_are_compared_depends_on_their_numbers_alone(
    seed: int, share: float, cuts: list[int], start: int
) -> None:
    numbers = np.arange(start, start + 300)
    key = np.uint64(seed)
    whole = drawn(key, numbers, share)
    in_batches = [drawn(key, batch, share) for batch in np.split(numbers, sorted(cuts))]
    assert np.concatenate(in_batches).tolist() == whole.tolist()
    # A smaller share is part of a larger one.
    assert not (drawn(key, numbers, share / 2) & ~whole).any()


def test_the_share_is_met_and_seeds_choose_differently() -> None:
    numbers = np.arange(1_000_000)
    keys = [stream(seed, Purpose.VERIFY_ENGINE) for seed in range(2)]
    for share in (0.0, 0.001, 0.1, 0.5, 1.0):
        spread = np.sqrt(share * (1 - share) / 1e6)
        assert abs(drawn(keys[0], numbers, share).mean() - share) < 4 * spread + 1e-12
    both = (drawn(keys[0], numbers, 0.1) & drawn(keys[1], numbers, 0.1)).mean()
    assert abs(both - 0.01) < 0.001


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


@pytest.fixture(scope="module", params=TOKENIZERS)
def real(request: pytest.FixtureRequest, real_texts: list[str]) -> tuple[str, bytes, Ids, Offsets]:
    """A real tokenizer, and the ids the reference gives for the real texts."""
    tokenizer_json = (SHARED / "tokenizers" / request.param / "tokenizer.json").read_bytes()
    return request.param, tokenizer_json, *HfEngine(tokenizer_json).encode(pa.array(real_texts))


@pytest.mark.parametrize("engine", FAST)
def test_engines_that_read_a_real_tokenizer_give_the_ids_of_the_reference(
    real: tuple[str, bytes, Ids, Offsets], engine: Any, real_texts: list[str]
) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed (pip install packprep[fast])")
    tokenizer, tokenizer_json, expected, expected_offsets = real
    if tokenizer in ("bert_base_uncased", "t5_small"):  # WordPiece and Unigram
        with pytest.raises(InputError, match=r"cannot read this tokenizer\.json"):
            load_engine(engine, tokenizer_json)
    else:
        encoded = load_engine(engine, tokenizer_json).encode(pa.array(real_texts))
        assert unequal(*encoded, expected, expected_offsets).tolist() == []


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_auto_takes_the_faster_engine_for_a_real_tokenizer(
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
    assert len(choice.notes) == (engine == "hf" or choice.gate["verdict"] == "guarded")
