import json
import random

import numpy as np
import pyarrow as pa
import pytest

from packprep.engines.byte_masks import token_bytes
from tests.helpers.examples import long_but

from ..chat.test_masks import loaded
from ..chat.test_template import TOKENIZERS

SIGNS = ("a", " the", "\n", "\n\n", "é", "你好", "😀", "<|im_end|>", "</s>", "<|eot_id|>", "12")


BYTE_LEVEL = ("gpt2", "llama3_2", "mistral_nemo", "qwen3")


@pytest.mark.parametrize("name", long_but(["gpt2"], BYTE_LEVEL))
def test_the_bytes_of_tokens_give_the_mask_of_the_reference(name: str) -> None:
    _, exact, encoder = loaded(TOKENIZERS / name, "hf")
    rng = random.Random(3)
    texts = ["".join(rng.choices([*SIGNS, "'s "], k=rng.randrange(12))) for _ in range(400)]
    spans = []
    for text in texts:
        most = min(3, (len(text) + 1) // 2)
        spans.append(sorted(rng.sample(range(len(text) + 1), 2 * rng.randrange(most + 1))))
    array = pa.array(texts, pa.large_string())
    ids, offsets = encoder.encode(array)
    assert exact.token_bytes is not None
    of_rows = pa.chunked_array([pa.array(spans, pa.list_(pa.int32()))])
    mask = exact.token_bytes.mask(ids, offsets, array, of_rows)
    assert mask is not None
    expected = exact.masks(texts, [list(row) for row in spans])
    assert ids.tolist() == np.concatenate([row for row, _ in expected]).tolist()
    assert mask.tolist() == np.concatenate([row for _, row in expected]).tolist()


def test_text_that_the_tokenizer_changes_has_no_mask_of_bytes() -> None:
    _, exact, encoder = loaded(TOKENIZERS / "qwen3", "hf")
    array = pa.array(["e\u0301 and more"], pa.large_string())
    spans = pa.chunked_array([pa.array([[0, 2]], pa.list_(pa.int32()))])
    assert exact.token_bytes is not None
    assert exact.token_bytes.mask(*encoder.encode(array), array, spans) is None


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
        {"added_tokens": [{"id": 0, "content": "<a>", "lstrip": True}]},
    ],
)
def test_a_tokenizer_that_changes_text_has_none(change: dict[str, object]) -> None:
    plain = {
        "model": {"type": "BPE", "vocab": {"a": 0}},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
    }
    assert token_bytes(json.dumps(plain).encode()) is not None
    assert token_bytes(json.dumps({**plain, **change}).encode()) is None
