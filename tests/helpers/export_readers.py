"""Readers of the formats of `packprep export`, each written from its published description.

scripts/check_trainers installs projects whose own classes read some of them, and compares those.
"""

import gzip
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np

NO_LOSS = -100


class ReadPack(NamedTuple):
    """A pack as a reader gives it. labels: unshifted, -100 on each segment's first token."""

    tokens: list[int]
    cu_seqlens: list[int]
    labels: list[int]


Reader = Callable[[Path, str], list[ReadPack]]


def pack_of(tokens: Sequence[list[int]], labels: Sequence[list[int]] | None = None) -> ReadPack:
    """A pack of segments. labels: None where all but the first token of each are trained."""
    labels = labels or [[NO_LOSS, *segment[1:]] for segment in tokens]
    ends = [0, *np.cumsum([len(segment) for segment in tokens]).tolist()]
    return ReadPack(list(chain(*tokens)), ends, list(chain(*labels)))


def read_megatron(directory: Path, split: str) -> list[ReadPack]:
    index = (directory / f"{split}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, documents = struct.unpack("<QBQQ", index[9:34])
    assert version == 1
    dtype = np.dtype({4: np.int32, 8: np.uint16}[code])
    lengths = np.frombuffer(index, np.int32, sequences, 34)
    pointers = np.frombuffer(index, np.int64, sequences, 34 + lengths.nbytes)
    firsts = np.frombuffer(index, np.int64, documents, 34 + lengths.nbytes + pointers.nbytes)
    assert len(index) == 34 + lengths.nbytes + pointers.nbytes + firsts.nbytes
    content = (directory / f"{split}.bin").read_bytes()
    texts = [
        np.frombuffer(content, dtype, size, at).tolist()
        for size, at in zip(lengths.tolist(), pointers.tolist(), strict=True)
    ]
    return [pack_of(texts[first:last]) for first, last in pairwise(firsts.tolist())]


def read_npy(directory: Path, split: str) -> list[ReadPack]:
    documents = [
        tuple(map(int, line.split(",")))
        for line in gzip.decompress((directory / f"{split}.csv.gz").read_bytes()).decode().split()
    ]
    record = json.loads((directory / "export.json").read_bytes())
    dtype = np.uint16 if record["data"]["vocab_size"] <= 1 << 16 else np.uint32
    tokens = np.fromfile(directory / f"{split}.npy", dtype).tolist()
    labels = tokens
    if (mask := directory / f"{split}.label_mask.npy").exists():
        labels = np.where(np.fromfile(mask, np.bool_), tokens, NO_LOSS).tolist()
    packs = []
    for begin, end in pairwise(np.load(directory / f"{split}.offsets.npy").tolist()):
        parts = [(a, b) for a, b in documents if begin <= a < end]
        assert parts[0][0] == begin
        assert parts[-1][1] == end
        trained = [[NO_LOSS, *labels[a + 1 : b]] for a, b in parts]
        packs.append(pack_of([tokens[a:b] for a, b in parts], trained))
    return packs


def _by_boundaries(sample: Any) -> ReadPack:
    tokens = list(map(int, sample["tokens"]))
    labels = list(map(int, sample.get("labels", tokens)))
    parts = list(pairwise(map(int, sample["cu_seqlens"])))
    return pack_of(
        [tokens[a:b] for a, b in parts], [[NO_LOSS, *labels[a + 1 : b]] for a, b in parts]
    )


def read_trl(directory: Path, split: str) -> list[ReadPack]:
    """The batches of TRL's own collator, one pack each."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    collator = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    packs = []
    for row in datasets.load_from_disk(str(directory))[split]:
        batch = collator([row])
        packs.append(_by_positions(*(batch[name][0].tolist() for name in _FIELDS)))
    return packs


_FIELDS = ("input_ids", "labels", "position_ids")


def read_axolotl(directory: Path, split: str) -> list[ReadPack]:
    rows = datasets.load_from_disk(str(directory))[split]
    return [_by_positions(*(row[name] for name in _FIELDS)) for row in rows]


def _by_positions(tokens: list[int], labels: list[int], positions: list[int]) -> ReadPack:
    starts = [place for place, position in enumerate(positions) if position == 0]
    ends = [*starts, len(tokens)]
    for first, last in pairwise(ends):
        assert positions[first:last] == list(range(last - first))
    return ReadPack(tokens, ends, labels)


def read_llama_factory(directory: Path, split: str) -> list[ReadPack]:
    """Rows without the padding at their ends, which the mask shows with 0."""
    packs = []
    for row in datasets.load_from_disk(str(directory))[split]:
        mask = row["attention_mask"]
        size = sum(number > 0 for number in mask)
        pack = _by_positions(*(row[name][:size] for name in _FIELDS))
        lengths = [last - first for first, last in pairwise(pack.cu_seqlens)]
        assert mask[:size] == np.repeat(np.arange(1, len(lengths) + 1), lengths).tolist()
        assert set(row["labels"][size:]) <= {NO_LOSS}
        assert not any(row["input_ids"][size:] + row["position_ids"][size:])
        assert {len(values) for values in row.values()} == {len(mask)}
        assert len(mask) % 8 == 0, "LLaMA-Factory would pad all but position_ids"
        packs.append(pack)
    return packs


def read_megatron_bridge(directory: Path, split: str) -> list[ReadPack]:
    packs = []
    for row in _parquet_rows(directory, split):
        tokens, mask = row["input_ids"], row["loss_mask"]
        parts = list(pairwise([*row["seq_start_id"], len(tokens)]))
        # The mask of a position is of the prediction made there: of the next token.
        labels = [
            [NO_LOSS]
            + [tokens[place] if mask[place - 1] else NO_LOSS for place in range(first + 1, last)]
            for first, last in parts
        ]
        packs.append(pack_of([tokens[first:last] for first, last in parts], labels))
    return packs


def read_parquet(directory: Path, split: str) -> list[ReadPack]:
    packs = []
    for row in _parquet_rows(directory, split):
        tokens = row.get("tokens", row.get("input_ids"))
        ends = row.get("cu_seqlens") or [0, *np.cumsum(row["seq_lengths"]).tolist()]
        labels = row.get("labels", tokens)
        packs.append(_by_boundaries({"tokens": tokens, "cu_seqlens": ends, "labels": labels}))
    return packs


def _parquet_rows(directory: Path, split: str) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for path in sorted((directory / split).glob("*.parquet")):
        yield from pq.read_table(path).to_pylist()


READERS: dict[str, Reader] = {
    "megatron": read_megatron,
    "megatron-bridge": read_megatron_bridge,
    "npy": read_npy,
    "trl": read_trl,
    "axolotl": read_axolotl,
    "llama-factory": read_llama_factory,
    "parquet": read_parquet,
}
