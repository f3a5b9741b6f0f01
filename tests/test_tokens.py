"""Laws of tokens: engines agree, and text in chunks has the tokens of text in one piece."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier

import datasets
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packprep.support.errors import InputError
from packprep.tokens import gate
from packprep.tokens.encode import encode
from packprep.tokens.engine import Engine, choose_engine
from packprep.tokens.stage import quiet_datasets
from packprep.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.helpers.corpus import tiny_tokenizer

TEXTS = st.lists(st.text("ab é日'1 \n", max_size=30), min_size=1, max_size=8)


@cache
def loaded() -> tuple[Tokenizer, dict[str, Engine]]:
    tokenizer = load_tokenizer(tiny_tokenizer(), eos="none", bos="none")
    engines = {"hf": choose_engine(tokenizer, "hf", 0)[0]}
    if pytest.importorskip("fastokens"):
        engines["fast"] = choose_engine(tokenizer, "auto", 10**9)[0]
    return tokenizer, engines


@given(TEXTS, st.data())
def test_engines_and_chunks_do_not_change_tokens(texts: list[str], data: st.DataObject) -> None:
    tokenizer, engines = loaded()
    cut = data.draw(st.integers(0, len(texts)))
    whole = pa.array(texts, pa.large_string())
    parts = pa.chunked_array([whole[:cut], whole[cut:]])
    made = []
    for engine in engines.values():
        for column in (whole, parts):
            table = encode(pa.table({"text": column}), tokenizer, engine)
            made.append(table["tokens"].to_pylist())
    assert all(each == made[0] for each in made)


@pytest.mark.parametrize("ends", [("none", "none"), ("<s>", "none"), ("<s>", "</s>")])
def test_tokens_of_the_fast_engine_are_compared_with_the_reference(
    ends: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all documents here, and not of one in a thousand: whatever ends they have."""
    monkeypatch.setattr(gate, "SHARE", 1.0)
    tokenizer, engine = load_tokenizer(tiny_tokenizer(), *ends), loaded()[1]["fast"]
    rows = pa.table({"text": pa.chunked_array([pa.array(["ab", "", "b é"], pa.large_string())])})
    tokens = encode(rows, tokenizer, engine)
    assert (engine.name, choose_engine(tokenizer, "auto", 1000)[0].name) == ("fastokens", "hf")
    engine.compare_sample(rows, tokens, tokenizer)
    for wrong in (["ab", "", "b e"], ["ab", "a", "b é"]):
        other = encode(pa.table({"text": pa.array(wrong, pa.large_string())}), tokenizer, engine)
        with pytest.raises(InputError, match="gives other ids than tokenizers for a document"):
            engine.compare_sample(rows, pa.table({"tokens": other["tokens"]}), tokenizer)


def test_bars_stay_off_while_any_thread_works_and_are_as_before_then() -> None:
    both, one_left = Barrier(2), Barrier(2)

    def work(leaves_first: bool) -> bool:
        with quiet_datasets:
            both.wait(10)
            if not leaves_first:
                one_left.wait(10)
                return not datasets.utils.is_progress_bar_enabled()
        one_left.wait(10)
        return True

    for before in (True, False):
        (datasets.enable_progress_bars if before else datasets.disable_progress_bars)()
        with ThreadPoolExecutor(2) as pool:
            assert all(pool.map(work, (True, False)))
        assert datasets.utils.is_progress_bar_enabled() == before
    datasets.enable_progress_bars()
