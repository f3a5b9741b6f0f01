"""Columns of samples in memory: numpy, torch, arrow or lists in, numpy out, without Python ints.

A column has one value for each sample, or a run of values for each: one for each token, or one for
each token of the response, which is the end of the sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packprep.schemas.views import ranges_at

from ..compiling import MANY, compiled

_Int64 = NDArray[np.int64]

TOKEN_IDS = ("tokens", "input_ids")
MASKS = ("loss_mask", "loss_masks")
RESPONSES = ("response_length", "response_lengths")


class Ragged(Protocol):
    """A run of values for each sample. dtype: of all values."""

    dtype: np.dtype[Any]

    @property
    def lengths(self) -> _Int64:
        """Values of each sample, int64 [samples]."""

    def take(self, samples: _Int64) -> NDArray[Any]:
        """The values of these samples, concatenated."""


class Pieces:
    """RunPlaces that are arrays of their own."""

    def __init__(self, name: str, pieces: Sequence[NDArray[Any]]) -> None:
        self.pieces = pieces
        self.lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        kinds = {piece.dtype for piece in pieces}
        if len(kinds) > 1:  # an empty list has the dtype of floats
            kinds = {piece.dtype for piece in pieces if len(piece)}
        self.dtype = _checked_dtype(name, kinds)
        if any(piece.ndim != 1 for piece in pieces):
            sample = next(number for number, piece in enumerate(pieces) if piece.ndim != 1)
            raise ValueError(
                f"column {name!r} of sample {sample} has shape {[*pieces[sample].shape]}; expected "
                "one dimension"
            )

    def take(self, samples: _Int64) -> NDArray[Any]:
        pieces = [self.pieces[sample] for sample in samples.tolist()]
        empty = np.empty(0, self.dtype)
        return np.concatenate([empty, *pieces], dtype=self.dtype, casting="unsafe")


class RunPlaces:
    """Places of runs in one array: `lengths` values from `starts` on. Both int64 [samples]."""

    def __init__(self, offsets: _Int64) -> None:
        self.starts, self.lengths = offsets[:-1], np.diff(offsets)
        self._latest: tuple[_Int64, _Int64] | None = None

    def index(self, samples: _Int64) -> _Int64:
        """Index of the values of these samples; kept for the next column of the same samples."""
        if self._latest is None or self._latest[0] is not samples:
            self._latest = samples, ranges_at(self.starts[samples], self.lengths[samples])
        return self._latest[1]


def join_runs(values: Any, starts: Any, lengths: Any, joined: Any) -> None:
    """Copy runs of values one after another."""
    place = 0
    for run in range(len(starts)):
        part = values[starts[run] : starts[run] + lengths[run]]
        out = joined[place : place + lengths[run]]
        for i in range(len(out)):  # from 0 on, so that the loop is vectorised
            out[i] = part[i]
        place += lengths[run]


class Flat:
    """RunPlaces of one array. Columns with equal offsets have one `runs`."""

    def __init__(self, name: str, values: NDArray[Any], offsets: _Int64) -> None:
        self.values, self.runs = values, RunPlaces(offsets)
        self.dtype = _checked_dtype(name, {values.dtype})

    @property
    def lengths(self) -> _Int64:
        return self.runs.lengths

    def take(self, samples: _Int64) -> NDArray[Any]:
        if len(self.lengths) <= MANY or (join := compiled(join_runs)) is None:
            return self.values[self.runs.index(samples)].astype(self.dtype, copy=False)
        lengths = self.lengths[samples]
        joined = np.empty(lengths.sum(), self.dtype)
        join(self.values, self.runs.starts[samples], lengths, joined)
        return joined

    def share(self, other: Ragged) -> None:
        """Take the runs of another column if they are equal."""
        if isinstance(other, Flat) and all(
            np.array_equal(mine, theirs)
            for mine, theirs in (
                (self.runs.starts, other.runs.starts),
                (self.lengths, other.lengths),
            )
        ):
            self.runs = other.runs


@dataclass(kw_only=True)
class Samples:
    """The columns of samples, by what they have values for."""

    names: list[str]
    """of all columns, in the order of the input"""
    tokens: Ragged
    per_token: dict[str, Ragged] = field(default_factory=dict)
    per_response: dict[str, Ragged] = field(default_factory=dict)
    """of as many values as the response has tokens, and the sample has more"""
    per_sample: dict[str, NDArray[Any]] = field(default_factory=dict)
    responses: _Int64 | None = None
    """tokens of each response, int64 [samples]"""

    def __len__(self) -> int:
        return len(self.tokens.lengths)

    @property
    def mask(self) -> str | None:
        """Name of the column that says which tokens are trained."""
        columns = {**self.per_token, **self.per_response}
        return next((name for name in MASKS if name in columns), None)


def read_samples(samples: Any) -> Samples | None:
    """The columns of samples; None if there are no samples.

    samples: a sequence of dicts with the same keys; or a mapping of columns, or a table of pyarrow.
    ValueError for a column with another number of values than its samples have tokens or response
    tokens, and for ids, masks, labels and response lengths in a form that they cannot have.
    """
    columns = _columns(samples)
    if not columns:
        return None
    key = _check_names(columns)
    tokens = _ids(key, columns[key])
    result = Samples(names=[*columns], tokens=tokens)
    for name in RESPONSES:
        if name in columns:
            result.responses = _response_lengths(name, _read(name, columns[name]), tokens.lengths)
    for name, values in columns.items():
        if name == key:
            continue
        column: Ragged | NDArray[Any]
        if name in MASKS:
            column = _runs(name, _whole_masks(values, tokens.lengths, result.responses))
        else:
            column = _ids(name, values) if name == "labels" else _read(name, values)
        if isinstance(column, np.ndarray):
            result.per_sample[name] = column
        else:
            table = _kind(name, column, result)
            if isinstance(column, Flat):
                column.share(next(iter(table.values()), tokens))
            table[name] = column
    return result if len(result) else None


def _check_names(columns: Mapping[str, Any]) -> str:
    """Name of the column of token ids; ValueError unless the columns have one and equal sizes."""
    for names in (TOKEN_IDS, MASKS, RESPONSES):
        if all(name in columns for name in names):
            raise ValueError(
                f"the samples have the columns {' and '.join(names)}; expected one of them"
            )
    key = next((name for name in TOKEN_IDS if name in columns), None)
    if key is None:
        raise ValueError(
            f"the samples have the columns {', '.join(columns)}; expected lists of token ids in "
            "'tokens' or 'input_ids'"
        )
    for name in (key, *columns):
        if not hasattr(values := columns[name], "__len__"):
            raise ValueError(
                f"column {name!r} is {_short(values)}; expected a list or an array with a value "
                "for each sample"
            )
        if len(values) != len(columns[key]):
            raise ValueError(
                f"column {name!r} has {len(values):,} samples and {key!r} has "
                f"{len(columns[key]):,}; expected equal numbers"
            )
    return key


def _ids(name: str, values: Any) -> Ragged:
    """A column of token ids, or of labels."""
    column = _runs(name, values)
    if column.dtype.kind not in "iu":
        if column.lengths.any():
            raise ValueError(f"column {name!r} has {column.dtype}; expected integers, token ids")
        column.dtype = np.dtype(np.int64)
    return column


def _runs(name: str, values: Any) -> Ragged:
    """A column that must have a list for every sample."""
    column = _read(name, values)
    if not isinstance(column, np.ndarray):
        return column
    if len(column):
        raise _no_list(name, 0, column[0])
    return Pieces(name, [])


def _no_list(name: str, sample: int, value: object) -> ValueError:
    none = ", or None for the whole response" if name in MASKS else ""
    return ValueError(
        f"column {name!r} of sample {sample} is {_short(value)}; expected a list of numbers for "
        f"every sample, one for each token or each token of the response{none}"
    )


def _whole_masks(values: Any, lengths: _Int64, responses: _Int64 | None) -> Any:
    """Masks of samples: instead of None one of the whole response, or of the whole sample.

    It has the form of the other masks: of all tokens, or of the response.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        if not values.null_count:
            return values
        values = [
            each.values if isinstance(each, pa.ListScalar) else each.as_py() for each in values
        ]
    if hasattr(values, "detach") or all(value is not None for value in values):
        return values
    masks = {sample: value for sample, value in enumerate(values) if _is_run(value)}
    trained = lengths if responses is None else responses
    of_tokens = bool(masks) and all(len(masks[each]) == lengths[each] for each in masks)
    before = lengths - trained if of_tokens else np.zeros_like(lengths)
    return [
        np.repeat([False, True], [before[sample], trained[sample]]) if value is None else value
        for sample, value in enumerate(values)
    ]


def _kind(name: str, column: Ragged, samples: Samples) -> dict[str, Ragged]:
    """The table that a column of runs belongs to."""
    lengths, responses = samples.tokens.lengths, samples.responses
    if np.array_equal(column.lengths, lengths):
        return samples.per_token
    if responses is not None and np.array_equal(column.lengths, responses):
        return samples.per_response
    wrong = column.lengths != lengths
    if responses is not None and (neither := wrong & (column.lengths != responses)).any():
        wrong = neither
    sample = int(np.argmax(wrong))
    response = "" if responses is None else f" and its response {responses[sample]:,}"
    hint = "; pass response_lengths if it has values for the response only"
    raise ValueError(
        f"column {name!r} of sample {sample} has {column.lengths[sample]:,} values, and the sample "
        f"has {lengths[sample]:,} tokens{response}; expected one value for each"
        + (hint if responses is None else ", the same for all samples of a column")
    )


def _response_lengths(name: str, responses: Ragged | NDArray[Any], lengths: _Int64) -> _Int64:
    if not isinstance(responses, np.ndarray):
        if not len(lengths):
            return np.zeros(0, np.int64)
        raise ValueError(
            f"column {name!r} has lists; expected a whole number for each sample, the tokens of "
            "its response"
        )
    if responses.dtype.kind in "iu":
        wrong = (responses < 0) | (responses > lengths)
    else:  # some are no whole numbers, or larger than any
        wrong = np.array(
            [
                isinstance(each, bool)
                or not isinstance(each, int | np.integer)
                or not 0 <= each <= length
                for each, length in zip(responses.tolist(), lengths.tolist(), strict=True)
            ],
            np.bool_,
        )
    if wrong.any():
        sample = int(np.argmax(wrong))
        found = _short(responses[sample])
        raise ValueError(
            f"the response length of sample {sample} is {found}, and the sample has "
            f"{lengths[sample]:,} tokens; expected a whole number of at most that many"
        )
    return responses.astype(np.int64)


def _columns(samples: Any) -> Mapping[str, object]:
    if isinstance(samples, Mapping):
        return samples
    if isinstance(samples, pa.Table | pa.RecordBatch):
        return dict(zip(samples.schema.names, samples.columns, strict=True))
    if not len(samples):
        return {}
    names = [*samples[0]]
    for number, sample in enumerate(samples):
        if len(sample) != len(names) or not all(name in sample for name in names):
            raise ValueError(
                f"sample {number} has the keys {', '.join(sample)}, and sample 0 has "
                f"{', '.join(names)}; expected the same for all samples"
            )
    return {name: [sample[name] for sample in samples] for name in names}


def _read(name: str, values: Any) -> Ragged | NDArray[Any]:
    """A column in numpy: runs of values, or an array with a value for each sample."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return _read_arrow(name, values)
    if hasattr(values, "detach"):
        if values.is_nested:
            offsets = _array(values.offsets()).astype(np.int64)
            return Flat(name, _array(values.values()), offsets)
        values = _array(values)
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype != object:
        return values
    runs = [_is_run(value) for value in values]
    if runs and not runs[0]:
        return _of_samples(values)
    if not all(runs):
        raise _no_list(name, runs.index(False), values[runs.index(False)])
    if runs and all(getattr(value, "is_cuda", False) for value in values):
        import torch

        offsets = np.append(0, np.cumsum([len(value) for value in values]))
        return Flat(name, _array(torch.cat([*values])), offsets)
    return Pieces(name, [_piece(name, *each) for each in enumerate(values)])


def _piece(name: str, sample: int, value: Any) -> NDArray[Any]:
    """The values of one sample."""
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, pa.Array) and value.null_count:
        raise ValueError(f"column {name!r} has a null among the values of sample {sample}")
    try:
        return _array(value)
    except ValueError:  # lists of different lengths
        raise _no_list(name, sample, value) from None


def _of_samples(values: Sequence[Any]) -> NDArray[Any]:
    """A value of each sample: numbers as an array of numbers, anything else as objects."""
    each = [_array(value) if hasattr(value, "detach") else value for value in values]
    if all(np.ndim(value) == 0 and not isinstance(value, str | Mapping) for value in each):
        array = np.asarray(each)
        if array.dtype.kind in "biufc":
            is_python = any(type(value) is float for value in each)
            return _native(array.astype(np.float32) if is_python else array)
    objects = np.empty(len(each), object)
    objects[:] = each
    return objects


def _is_run(value: Any) -> bool:
    """True for the values of the tokens of a sample, False for a value of the sample itself."""
    if isinstance(value, list | tuple):
        return True
    return getattr(value, "ndim", 0) > 0 or isinstance(value, pa.Array)


def _array(values: Any) -> NDArray[Any]:
    """A tensor, list or arrow array as numpy; Python floats become float32, as in torch."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if str(values.dtype) == "torch.bfloat16":  # numpy has no such type; float32 holds all of it
            values = values.float()
        return np.asarray(values.numpy())
    if isinstance(values, pa.Array):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    array = np.asarray(values)
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _read_arrow(name: str, values: Any) -> Ragged | NDArray[Any]:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
        if isinstance(values, pa.ChunkedArray):  # more than an array can hold
            raise ValueError(f"column {name!r} is too large for one array; pass large lists")
    if values.null_count:
        sample = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise ValueError(f"column {name!r} of sample {sample} is null; expected a value")
    if pa.types.is_fixed_size_list(values.type):
        size = values.type.list_size
        flat = values.flatten()
        offsets = np.arange(len(values) + 1, dtype=np.int64) * size
    elif pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        flat, offsets = values.values, values.offsets.to_numpy().astype(np.int64)
    else:
        array = values.to_numpy(zero_copy_only=False)
        return _native(array)
    if flat.null_count:
        raise ValueError(f"column {name!r} has a null among the values of a sample")
    return Flat(name, flat.to_numpy(zero_copy_only=False), offsets)


def _short(value: object) -> str:
    """The value as Python writes it, cut after 40 characters."""
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _native(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _checked_dtype(name: str, kinds: set[np.dtype[Any]]) -> np.dtype[Any]:
    """The dtype of all values of a column; ValueError unless they are numbers."""
    if odd := [kind for kind in kinds if kind.kind not in "biufc"]:
        raise ValueError(f"column {name!r} has values of {odd[0]}; expected numbers")
    found = np.result_type(*kinds) if kinds else np.dtype(np.float32)
    return found.newbyteorder("=")
