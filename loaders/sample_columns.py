"""Columns of samples in memory: numpy, torch or lists in, numpy out.

A column has one value for each sample, or a run of values for each: one for each token, or one for
each token of the response, which is the end of the sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..schemas.arrays import Int64

Array = NDArray[Any]
TOKEN_IDS = ("tokens", "input_ids")
MASKS = ("loss_mask", "loss_masks")
RESPONSES = ("response_length", "response_lengths")
_LISTS = (*TOKEN_IDS, *MASKS, "labels")  # columns that have a list for every sample


@dataclass(kw_only=True)
class Samples:
    """The columns of samples: `runs` have an array for each sample, `values` a value.

    lengths: tokens of each. responses: tokens at the end of each that are its response. kinds: of
    all columns, in the order of the input: "token", "response" or "segment".
    """

    key: str
    lengths: Int64
    responses: Int64 | None = None
    runs: dict[str, list[Array]] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    @property
    def trained(self) -> Int64:
        """Tokens at the end of each sample that are trained without a mask."""
        return self.lengths if self.responses is None else self.responses


def read_samples(samples: Any) -> Samples:
    """The columns of samples: a sequence of dicts with the same keys, or a mapping of columns."""
    columns = samples if isinstance(samples, Mapping) else _columns(samples)
    if not columns:
        return Samples(key="tokens", lengths=np.zeros(0, np.int64), runs={"tokens": []})
    for names in (TOKEN_IDS, MASKS, RESPONSES):
        if all(name in columns for name in names):
            raise ValueError(f"the samples have {' and '.join(names)}; expected one of them")
    key = next((name for name in TOKEN_IDS if name in columns), None)
    if key is None:
        raise ValueError(
            f"the samples have the columns {', '.join(columns)}; expected lists of token ids in "
            "'tokens' or 'input_ids'"
        )
    for name, values in columns.items():
        if not hasattr(values, "__len__") or len(values) != len(columns[key]):
            raise ValueError(
                f"column {name!r} is {_short(values)}; expected a value for each of the "
                f"{len(columns[key])} samples"
            )
    tokens = _runs(key, columns[key])
    read = Samples(key=key, lengths=_sizes(tokens), runs={key: tokens})
    for name in RESPONSES:
        if name in columns:
            read.responses = _response_lengths(columns[name], read.lengths)
    for name, values in columns.items():
        if name in MASKS:
            values = _whole_masks(values, read)
        if name in _LISTS or any(_is_run(value) for value in values):
            runs = read.runs[name] = tokens if name == key else _runs(name, values)
            read.kinds[name] = _kind(name, runs, read)
        else:
            read.values[name], read.kinds[name] = _of_samples(values), "segment"
    return read


def _columns(samples: Sequence[Mapping[str, object]]) -> dict[str, Any]:
    names = [*samples[0]] if len(samples) else []
    for number, sample in enumerate(samples):
        if {*sample} != {*names}:
            raise ValueError(
                f"sample {number} has the keys {', '.join(sample)}, and sample 0 has "
                f"{', '.join(names)}; expected the same for all samples"
            )
    return {name: [sample[name] for sample in samples] for name in names}


def _runs(name: str, values: Sequence[Any]) -> list[Array]:
    """An array of each sample, all of one dtype."""
    for sample, value in enumerate(values):
        if not _is_run(value):
            raise ValueError(
                f"column {name!r} of sample {sample} is {_short(value)}; expected a list of "
                "numbers for every sample, one for each token or each token of the response"
            )
    try:
        runs = [_array(value) for value in values]
    except ValueError:  # lists of different lengths
        raise ValueError(f"column {name!r} has lists in lists; expected lists of numbers") from None
    integers = name in (*TOKEN_IDS, "labels")
    types = {run.dtype for run in runs if run.size}  # an empty list has the type of floats
    if odd := [each for each in types if each.kind not in ("iu" if integers else "biufc")]:
        expected = "integers, token ids" if integers else "numbers"
        raise ValueError(f"column {name!r} has {odd[0]}; expected {expected}")
    if any(run.ndim != 1 for run in runs):
        raise ValueError(f"column {name!r} has lists in lists; expected lists of numbers")
    if not types:
        types = {np.dtype(np.int64) if integers or not runs else runs[0].dtype}
    return [run.astype(np.result_type(*types), copy=False) for run in runs]


def _whole_masks(values: Any, samples: Samples) -> Any:
    """Masks of samples: instead of None one of the whole response, or of the whole sample."""
    given = {number: value for number, value in enumerate(values) if _is_run(value)}
    of_tokens = given and all(len(run) == samples.lengths[at] for at, run in given.items())
    before = samples.lengths - samples.trained if of_tokens else np.zeros_like(samples.lengths)
    return [
        np.repeat([False, True], [before[number], samples.trained[number]])
        if value is None
        else value
        for number, value in enumerate(values)
    ]


def _kind(name: str, runs: list[Array], samples: Samples) -> str:
    """The kind of a column of runs, token or response, by their sizes."""
    sizes, lengths, responses = _sizes(runs), samples.lengths, samples.responses
    if np.array_equal(sizes, lengths):
        return "token"
    if responses is not None and np.array_equal(sizes, responses):
        return "response"
    wrong = sizes != lengths
    if responses is not None and (neither := wrong & (sizes != responses)).any():
        wrong = neither
    sample = int(np.argmax(wrong))
    response = "; pass response_lengths if it has values for the response only"
    if responses is not None:
        response = f", and its response {responses[sample]:,}, the same for all of a column"
    raise ValueError(
        f"column {name!r} of sample {sample} has {sizes[sample]:,} values, and the sample has "
        f"{lengths[sample]:,} tokens; expected one value for each{response}"
    )


def _response_lengths(values: Any, lengths: Int64) -> Int64:
    found = _of_samples(values)
    fits = found.dtype.kind in "iu" and found.ndim == 1
    for sample, (value, length) in enumerate(zip(values, lengths.tolist(), strict=True)):
        if not fits or not 0 <= int(value) <= length:
            raise ValueError(
                f"the response length of sample {sample} is {_short(value)}, and the sample has "
                f"{length:,} tokens; expected a whole number of at most that many for each sample"
            )
    return found.astype(np.int64)


def _is_run(value: Any) -> bool:
    """True for the values of the tokens of a sample, False for a value of the sample itself."""
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0


def _array(values: Any) -> Array:
    """A tensor or list as numpy; Python floats become float32, as in torch."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # numpy has no such type; float32 holds all of it
            values = values.float()
        return np.asarray(values.numpy())
    array = np.asarray(values)
    is_python = not isinstance(values, np.ndarray | np.generic)
    return array.astype(np.float32) if is_python and array.dtype == np.float64 else array


def _of_samples(values: Any) -> Array:
    """A value of each sample: numbers as an array of numbers, anything else as objects."""
    if isinstance(values, np.ndarray) or hasattr(values, "detach"):
        return _array(values)
    each = [_array(value) if hasattr(value, "detach") else value for value in values]
    if all(np.ndim(value) == 0 and not isinstance(value, str | Mapping) for value in each):
        array = np.asarray(each)
        if array.dtype.kind in "biufc":
            is_python = any(type(value) is float for value in each)
            return array.astype(np.float32) if is_python else array
    objects = np.empty(len(each), object)
    objects[:] = each
    return objects


def _sizes(runs: list[Array]) -> Int64:
    return np.array([len(run) for run in runs], np.int64)


def _short(value: object) -> str:
    """The value as Python writes it, cut after 40 characters."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else f"{text[:40]}..."
