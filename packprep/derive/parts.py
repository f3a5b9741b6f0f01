"""The inputs of a merge: finished outputs, in the form that they have in the result."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from packprep.derive.forms import Materialize, manifest_in_form, named_batch
from packprep.inspect.report_file import read_report
from packprep.output.build_facts import BuildInputs
from packprep.output.shard_writer import column_bytes
from packprep.schemas.columns import FILLER, token_type
from packprep.schemas.manifest import FileEntry, Manifest, Output, read_manifest
from packprep.schemas.names import Names, column_view
from packprep.schemas.report import Report
from packprep.schemas.storage.reader import Reader
from packprep.schemas.validate import check_batch
from packprep.schemas.views import list_view
from packprep.support.arrays import Int64
from packprep.support.errors import ConfigError
from packprep.tokens.reading import reader

_DOCUMENT_NUMBERS = ("document_ids", "pair_ids", "row_ids")  # columns of document ids


@dataclass(frozen=True)
class OutputPart:
    """An output whose packs are taken.

    source: the output as it is, with `manifest`.
    made: the manifest that it has in the form of the result.
    shift: number that is added to its document ids.
    windows: number of windows of the index outputs before it.
    """

    source: Reader
    made: Manifest
    shift: int = 0
    windows: int = 0

    @property
    def manifest(self) -> Manifest:
        return self.source.manifest

    @cached_property
    def report(self) -> Report:
        return read_report(self.source.output, self.manifest)

    @property
    def changes_form(self) -> bool:
        return self.made is not self.manifest

    @property
    def renumbered(self) -> bool:
        """True if its shards get other document ids; those of an index are in its table."""
        return (not self.made.is_index and self.shift > 0) and any(
            column.name in _DOCUMENT_NUMBERS for column in self.made.columns
        )

    def window_of(self, entry: FileEntry) -> int:
        """Window of a shard in the merged index; 0 if the result is none."""
        if not self.made.is_index:
            return 0
        shards = [shard.path for shard in self.manifest.files if shard.is_shard]
        return self.windows + self.manifest.index_table.shards[shards.index(entry.path)]

    def batches(self, entry: FileEntry) -> Iterator[pa.RecordBatch]:
        """Packs of a shard in the form of the result, checked, with new document ids."""
        limits = {
            "max_length": self.manifest.longest(entry),
            "vocab_size": self.manifest.vocab_size,
        }
        for read in self.source.read(entry):
            batch, where = read.rows, read.where
            if self.made.names != self.manifest.names:
                batch = named_batch(batch, self.made.columns, self.made.names, where)
                check_batch(batch, self.made.columns, **limits, where=where, first_pack=read.first)
            yield self._shifted(batch) if self.renumbered else batch

    def _shifted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for name in _DOCUMENT_NUMBERS:
            if name in batch.schema.names:
                view = list_view(batch, name, self.source.output.name)
                values = np.where(view.values == FILLER, FILLER, view.values + self.shift)
                offsets: pa.Int32Array = pa.array(view.offsets, pa.int32())
                lists = pa.ListArray.from_arrays(offsets, pa.array(values, pa.int64()))
                batch = batch.set_column(
                    batch.schema.get_field_index(name), batch.schema.field(name), lists
                )
        return batch

    def sizes(self, entry: FileEntry) -> tuple[Int64, Int64]:
        """Bytes and tokens of each pack of a shard in the form of the result, [packs] each."""
        sizes, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for batch in self.source.read(entry, (), "columns"):
            counts: dict[str, Int64] = {"row": np.zeros(len(batch.rows), np.int64)}
            for kind, name in {c.kind: c.name for c in self.manifest.columns}.items():
                view = column_view(batch.rows, name, entry.path)
                counts[kind] = np.diff(view.offsets).astype(np.int64)
            tokens, segments = counts["token"], counts["boundary"] - 1
            sizes.append(column_bytes(self.made.columns, tokens, segments, 1, counts["row"]))
            lengths.append(tokens)
        return np.concatenate(sizes), np.concatenate(lengths)


def read_parts(
    outputs: Sequence[Output], names: Names | None, materialize: Materialize | None
) -> list[OutputPart]:
    """The outputs in the form of the result.

    Raises ConfigError if they cannot have it, or if they do not fit together.
    """
    parts: list[OutputPart] = []
    shift = windows = 0
    for output in outputs:
        manifest = read_manifest(output)
        made = manifest_in_form(output, manifest, names, materialize)
        if parts:
            _check_fit(parts[0], output, made)
        parts.append(OutputPart(reader(output, manifest, "digests"), made, shift, windows))
        windows += len(manifest.index_table.windows) if manifest.is_index else 0
        shift += manifest.num_documents
    return parts


def _check_fit(first: OutputPart, output: Output, made: Manifest) -> None:
    pair = f"{first.source} and {output} differ in"
    if first.made.is_index != made.is_index:
        raise ConfigError(f"{pair} materialize: index and shards; add --materialize shards")
    if first.made.names != made.names:
        raise ConfigError(
            f"{pair} names: {first.made.names} and {made.names}; add --names hf or --names packprep"
        )
    if obstacle := merge_obstacle(first.made, made):
        raise ConfigError(f"{pair} {obstacle}; build one of them again to merge")


def merge_obstacle(one: Manifest, other: Manifest) -> str:
    """Reason why two outputs cannot be merged, in words; "" if there is none."""
    for fact, of_one, of_other in (
        ("tokenizer", one.data["inputs"]["tokenizer"], other.data["inputs"]["tokenizer"]),
        (
            "columns",
            [column.name for column in one.columns],
            [column.name for column in other.columns],
        ),
        ("token_type", token_type(one.columns), token_type(other.columns)),
        ("column types", one.data["columns"], other.data["columns"]),
        ("max_length", one.max_length, other.max_length),
        ("epochs", one.epochs, other.epochs),
        ("columns of the index", _index_facts(one), _index_facts(other)),
    ):
        if of_one != of_other:
            return (
                f"{fact}: {of_one} and {of_other}"
                if fact in ("columns", "token_type", "max_length", "epochs")
                else f"{fact}: not the same"
            )
    return ""


def _index_facts(manifest: Manifest) -> Any:
    """Facts that index outputs must share to be merged."""
    if not manifest.is_index:
        return None
    table = manifest.index_table
    return table.columns, table.bos_id, table.pad_id


def generations(manifest: Manifest) -> list[dict[str, object]]:
    """Builds that an output was merged from, in order; the output itself if it was not merged."""
    itself: dict[str, object] = {
        "identity": manifest.identity,
        "documents": manifest.num_documents,
        "packs": manifest.num_packs,
    }
    inputs: BuildInputs = manifest.data["inputs"]
    return inputs.get("generations", [itself])


def merged_inputs(parts: Sequence[OutputPart]) -> BuildInputs:
    """Facts that decide the bytes of several outputs together.

    The options are those that all outputs share; the identity of each generation covers the rest.
    """
    inputs = [part.made.data["inputs"] for part in parts]
    options = {
        key: value
        for key, value in inputs[0]["options"].items()
        if all(each["options"].get(key) == value for each in inputs)
    }
    return {
        "options": options,
        "sources": [source for each in inputs for source in each["sources"]],
        "tokenizer": inputs[0]["tokenizer"],
        "generations": [generation for part in parts for generation in generations(part.made)],
    }
