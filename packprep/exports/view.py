"""Packs of an output as flat arrays, which the formats are made of."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.arrays import Bools, Int32, Int64
from ..schemas.columns import FILLER, NO_LOSS
from ..schemas.manifest import Output, packs
from ..schemas.validate import check_batch
from ..schemas.views import ListView, Segments, list_array, list_view, segments_of
from ..support.errors import ConfigError


@dataclass(frozen=True, kw_only=True, eq=False)
class PackView:
    """Packs of a record batch.

    shard: path of their file. values: by standard column, of all packs, concatenated.
    """

    shard: str
    batch: pa.RecordBatch
    values: Mapping[str, NDArray[Any]]
    segments: Segments

    @property
    def tokens(self) -> NDArray[Any]:
        """Ids, [tokens], of the type in the shard."""
        return self.values["tokens"]

    @cached_property
    def lengths(self) -> Int64:
        """Tokens of each segment, [segments], padding included."""
        return self.segments.ends - self.segments.starts

    @cached_property
    def real(self) -> Int64:
        """Tokens of each segment without padding, [segments]; 0 of filler."""
        real = self.values.get("segment_lengths", self.lengths).astype(np.int64)
        return np.where(self.values.get("document_ids", real) == FILLER, 0, real)

    @cached_property
    def positions(self) -> Int32:
        """0, 1, 2, ... in each segment, [tokens]."""
        places = np.arange(len(self.tokens), dtype=np.int32)
        return places - np.repeat(self.segments.starts.astype(np.int32), self.lengths)

    def kept(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of each token without those of padding."""
        whole = np.array_equal(self.real, self.lengths)
        return values if whole else values[self.positions < np.repeat(self.real, self.lengths)]

    @cached_property
    def labels(self) -> Int32:
        """Unshifted targets, [tokens]; -100 without loss, and at the first of each segment."""
        labels = self.values.get("labels", self.tokens).astype(np.int32)
        labels[self.segments.starts] = NO_LOSS
        return labels

    @cached_property
    def trained(self) -> Bools:
        """True where there is loss, [tokens]."""
        trained: Bools = self.labels != NO_LOSS
        return trained

    @cached_property
    def counts(self) -> Int64:
        """Segments of each pack that are not filler, [packs]."""
        return np.add.reduceat((self.real > 0).astype(np.int64), self.segments.first[:-1])

    def per_token(self, values: NDArray[Any], dtype: str = "int32") -> Any:
        """An Arrow list for each pack of values per token."""
        return lists(self.segments.tokens, values, dtype)

    def per_segment(self, values: NDArray[Any], dtype: str = "int32") -> Any:
        """An Arrow list for each pack of values per segment."""
        return lists(self.segments.first, values, dtype)


def lists(offsets: Int64, values: NDArray[Any], dtype: str) -> Any:
    """An Arrow list column."""
    return list_array(ListView(offsets.astype(np.int32), np.ascontiguousarray(values, dtype)))


def views(output: Output, split: str) -> Iterator[PackView]:
    """The packs of a split. Raises FormatError for a shard that is damaged, or not sound."""
    layout = output.manifest.layout
    for part in packs(output, split, check=True):
        where = part.shard.path
        check_batch(part.batch, layout, where, part.first)
        columns = {c.standard: list_view(part.batch, c.name, where) for c in layout.columns}
        yield PackView(
            shard=where,
            batch=part.batch,
            values={name: column.flat for name, column in columns.items()},
            segments=segments_of(columns, where, part.first),
        )


def check_mask(view: PackView, output: Output) -> None:
    """Raise ConfigError if a label is another id than its token, so that a mask cannot say it."""
    if "labels" in view.values and ((view.labels != view.tokens) & view.trained).any():
        raise ConfigError(
            f"{output.files} has labels that are other ids than the tokens, and this format has at "
            "most a mask for them; choose another, such as parquet"
        )


def ends_of(output: Output) -> dict[str, Any]:
    """BOS and EOS of the build: [text, id] or None."""
    tokens = output.manifest.data["inputs"].get("tokens", {})
    tokenizer = tokens.get("stores", [tokens])[0].get("tokenizer", {})
    return {end: tokenizer.get(end) for end in ("bos", "eos")}
