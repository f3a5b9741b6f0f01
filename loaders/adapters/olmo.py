"""Batches for OLMo-core."""

from typing import Any

from packprep.schemas.columns import NO_LOSS

from ..batch import PackedBatch
from ..rows import Rows
from .fields import as_tensors, labels_of


def to_olmo(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of OLMo-core's collator.

    input_ids, labels of the next token int64 [n, T], doc_lens int32 [n, S], max_doc_lens list of n
    ints.

    Each row is one instance, as OLMo-core counts them. A shorter row ends in a document of padding;
    doc_lens of a row with fewer documents end in 0. A PackedBatch is one instance, n = 1: use
    packs_per_batch=1, or rows. Tested with the collator and get_cumulative_document_lengths of
    OLMo-core 3.0.0, whose attention with SDPA refuses boundaries: it needs flash-attention.
    """
    packs = (
        [as_tensors(batch)]
        if isinstance(batch, PackedBatch)
        else [as_tensors([row]) for row in batch]
    )
    import torch
    from torch.nn.functional import pad

    longest = max(map(len, packs))
    short = [longest - len(pack) for pack in packs]
    # Padding is a document: OLMo-core sums doc_lens across all rows, so each row must add up to T.
    lengths = [
        pad(pack.cu_seqlens.diff(), (0, int(room > 0)), value=room)
        for pack, room in zip(packs, short, strict=True)
    ]
    most = max(map(len, lengths))
    return {
        "input_ids": torch.stack(
            [pad(pack.tokens, (0, room)) for pack, room in zip(packs, short, strict=True)]
        ),
        "labels": torch.stack(
            [
                pad(labels_of(pack, "shifted"), (0, room), value=NO_LOSS)
                for pack, room in zip(packs, short, strict=True)
            ]
        ),
        "doc_lens": torch.stack([pad(each, (0, most - len(each))) for each in lengths]),
        "max_doc_lens": [
            max(pack.max_seqlen, room) for pack, room in zip(packs, short, strict=True)
        ],
    }
