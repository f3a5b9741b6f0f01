"""Samples of rollouts for tests: random ones, and the same samples in other containers."""

from typing import Any

import numpy as np
import pyarrow as pa
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


def columns_of(samples: list[dict[str, Any]], form: str) -> Any:
    """The columns of samples in the containers of a library; form: see the code."""
    columns = {name: [sample[name] for sample in samples] for name in samples[0]}
    if form == "numpy":
        return columns
    if form == "lists":
        return {name: [value.tolist() for value in values] for name, values in columns.items()}
    if form in ("arrow", "table"):
        types = {"tokens": pa.list_(pa.int64()), "loss_mask": pa.large_list(pa.int64())}
        types |= {"advantages": pa.list_(pa.float32()), "rewards": pa.float32()}
        arrays = {name: pa.array(columns[name], types[name]) for name in columns}
        if form == "arrow":
            return arrays
        whole = pa.table(arrays)
        return pa.concat_tables([whole[:2], whole[2:]])
    import torch

    values: dict[str, Any] = {
        name: [torch.from_numpy(np.asarray(value)) for value in values]
        for name, values in columns.items()
    }
    values["rewards"] = torch.stack(values["rewards"])
    if form == "bf16":
        values["advantages"] = [value.bfloat16() for value in values["advantages"]]
    if form == "jagged":
        values["tokens"] = torch.nested.nested_tensor(values["tokens"], layout=torch.jagged)
    return values
