"""All tokens of a split in one file, without padding, and where documents and packs begin.

megatron  SPLIT.bin and SPLIT.idx of Megatron-LM's IndexedDataset. Of packs, sequences are segments
          and the document index marks the packs; of a token store, both are its documents
npy       SPLIT.npy: ids without a header, as OLMo-core and nanoGPT map them; SPLIT.csv.gz: first
          token and end of each segment, as dolma writes them; SPLIT.offsets.npy: int64 [packs + 1],
          first token of each pack and the end; SPLIT.label_mask.npy: a bool per token, False
          where there is no loss, if the output has labels
"""

import gzip
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..schemas.arrays import Int64
from ..schemas.manifest import Output
from ..schemas.views import list_view
from ..support.errors import ConfigError
from ..support.records import writing
from ..tokens.store import Entry
from .view import check_mask, views

_UINT16 = 65500  # vocabularies below it are uint16 to Megatron, see its DType.optimal_dtype
_CODES = {2: 8, 4: 4}  # by bytes of an id
_NO_LABELS = (
    " has tokens without loss, and .bin/.idx has no place for labels; export packs as "
    "megatron-bridge, or as npy, which has a mask"
)


Part = tuple[NDArray[Any], Int64, Int64]
"""Tokens without padding, tokens of each segment, and segments of each pack; 0 for filler."""


def megatron(output: Output, split: str, folder: Path, name: str) -> int:
    """Write `.bin` and `.idx` of packs. Raises ConfigError for tokens without loss."""
    has_labels = "labels" in output.manifest.columns

    def parts() -> Iterator[Part]:
        for view in views(output, split):
            check_mask(view, output)
            if has_labels and view.kept(~view.trained & (view.positions > 0)).any():
                raise ConfigError(f"{output.files}{_NO_LABELS}")
            yield view.kept(view.tokens), view.real, view.counts

    return _write_megatron(parts(), output.manifest.layout.vocab_size, folder / split)


def megatron_documents(entry: Entry, split: str, folder: Path, name: str) -> int:
    """Write `.bin` and `.idx` of the documents of a store, with their BOS and EOS, in their order.

    Raises ConfigError for tokens without loss.
    """

    def parts() -> Iterator[Part]:
        for receipt in entry.files:
            path = entry.place.local(receipt.name, receipt.digest)
            with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
                batch = stream.read_next_batch()
            if {"labels", "mask"} & {*batch.schema.names}:
                raise ConfigError(f"{entry.place}{_NO_LABELS}")
            view = list_view(batch, "tokens", str(path))
            lengths = np.diff(view.places)
            yield view.flat, lengths, np.sign(lengths)

    size = entry.facts["deciding"]["tokenizer"]["vocab_size"]
    return _write_megatron(parts(), size, folder / split)


def _write_megatron(parts: Iterable[Part], vocab_size: int, path: Path) -> int:
    """Write the two files. path: without their endings."""
    dtype, sizes = np.dtype("<u2" if vocab_size < _UINT16 else "<i4"), list[Any]()
    with writing(path.with_suffix(".bin")) as file:
        for tokens, *each in parts:
            file.write(np.ascontiguousarray(tokens, dtype).data)
            sizes.append(each)
    lengths, packs = _joined(sizes)
    places = (np.cumsum(lengths) - lengths) * dtype.itemsize
    with writing(path.with_suffix(".idx")) as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, _CODES[dtype.itemsize]))
        file.write(struct.pack("<QQ", len(lengths), len(packs)))
        for values, kind in ((lengths, "<i4"), (places, "<i8"), (packs, "<i8")):
            file.write(values.astype(kind).data)
    return len(packs) - 1


def _joined(sizes: Sequence[tuple[Int64, Int64]]) -> tuple[Int64, Int64]:
    """Lengths of all segments, and the first segment of each pack, and the end; without filler.

    sizes: tokens of segments, and segments of packs, of each record batch.
    """
    real, counts = map(np.concatenate, zip(*sizes, strict=True))
    return real[real > 0], np.append(0, np.cumsum(counts[counts > 0]))


def npy(output: Output, split: str, folder: Path, name: str) -> int:
    """Write flat ids. Raises ConfigError for labels that are other ids than the tokens."""
    dtype = "uint16" if output.manifest.layout.vocab_size <= 1 << 16 else "uint32"
    has_labels, sizes = "labels" in output.manifest.columns, list[Any]()
    with ExitStack() as opened:
        ids = opened.enter_context(writing(folder / f"{split}.npy"))
        if has_labels:
            mask = opened.enter_context(writing(folder / f"{split}.label_mask.npy"))
        for view in views(output, split):
            check_mask(view, output)
            ids.write(np.ascontiguousarray(view.kept(view.tokens), dtype).data)
            if has_labels:
                mask.write(view.kept(view.trained).data)
            sizes.append((view.real, view.counts))
    lengths, packs = _joined(sizes)
    ends = np.append(0, np.cumsum(lengths))
    with (
        writing(folder / f"{split}.csv.gz") as raw,
        gzip.GzipFile("", "wb", 1, raw, mtime=0) as lines,
    ):
        np.savetxt(lines, np.stack([ends[:-1], ends[1:]], axis=1), "%d", ",")
    with writing(folder / f"{split}.offsets.npy") as file:
        np.save(file, ends[packs])
    return len(packs) - 1
