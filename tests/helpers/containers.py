"""Samples of rollouts for tests: random ones."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

_DTYPES = ["int8", "uint8", "int32", "int64", "float16", "float32", "float64", "bool"]


@st.composite
def rollouts(draw: Any) -> list[dict[str, Any]]:
    """Samples of 0 to 9 tokens, with columns of each kind and of any dtype."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    responses = [draw(st.integers(0, length)) for length in lengths]
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    of_tokens, of_responses = draw(st.sampled_from(_DTYPES)), draw(st.sampled_from(_DTYPES))
    return [
        {
            "tokens": random.integers(0, 100, length),
            "loss_mask": random.integers(0, 2, length).astype(np.int8),
            "returns": (random.random(length) * 100).astype(of_tokens),
            "advantages": (random.random(response) * 100).astype(of_responses),
            "rewards": np.float64(random.random()),
            "response_lengths": response,
            "uid": f"sample {number}",
        }
        for number, (length, response) in enumerate(zip(lengths, responses, strict=True))
    ]
