"""Batches in; the fields that each trainer reads out.

Each adapter takes a PackedBatch, or the rows of a `load_from_disk` dataset, so it is also a
collate_fn or data_collator. It returns one sequence [1, T] without the attention_mask [1, T] that
such trainers know: with that mask, even one of ones, transformers ignores the boundaries, and
documents see each other with no error. With a cache it ignores them too, so use_cache=False is
among the fields. Labels are in the trainer's convention, whatever the batch has. A new trainer is a
row of `NAMES` where only names differ. `scripts/check_trainers` runs each adapter in its trainer.
"""

from functools import cache
from typing import Any, Literal

from ..schemas.columns import NO_LOSS
from .batch import LabelKind, PackedBatch, Tensor
from .masks import (
    as_tensors,
    block_diagonal_mask,
    masks_of_layers,
    segment_numbers,
    to_flex_block_mask,
    to_seq_idx,
)
from .rows import Rows, row_tokens

_SEQUENCE = {"input_ids": "tokens", "position_ids": "positions", "labels": "labels"}
_FLASH = {
    "cu_seq_lens_q": "boundaries",
    "cu_seq_lens_k": "boundaries",
    "max_length_q": "longest",
    "max_length_k": "longest",
}
NAMES: dict[str, dict[str, str]] = {
    "hf": {**_SEQUENCE, **_FLASH, "seq_idx": "segments"},
    "trl": {**_SEQUENCE, **_FLASH, "seq_idx": "segments"},
    "axolotl": _SEQUENCE,
    "llama_factory": _SEQUENCE,
    "hf_4d": {**_SEQUENCE, "seq_idx": "segments"},
    "torchtune": {"tokens": "tokens", "labels": "labels", "input_pos": "positions"},
    "torchtitan": {"input": "tokens", "positions": "positions"},
    "megatron": {"tokens": "tokens", "position_ids": "positions"},
}
"""Of each trainer: its names, and what it calls so. All but `longest` are [1, T] or cu_seqlens."""
REJECTED = 1


def _fields(batch: PackedBatch | Rows, trainer: str, sides: str | None = None) -> dict[str, Any]:
    """Fields of the trainer. sides: "both" for a batch with both sides of pairs: no labels then."""
    batch = as_tensors(batch) if sides == "both" else as_trained(batch)
    values: dict[str, Any] = {
        "tokens": batch.tokens[None],
        "positions": batch.position_ids[None],
        "boundaries": batch.cu_seqlens,
        "longest": batch.max_seqlen,
    }
    names = NAMES[trainer]
    if "segments" in names.values():
        values["segments"] = to_seq_idx(batch)
    fields: dict[str, Any] = {}
    if "labels" in names.values() and batch.labels is not None and sides != "both":
        values["labels"] = batch.labels_as("hf")[None]
    if "input_ids" in names:
        fields["use_cache"] = False
        fields |= loss_divisor(values["labels"]) if "labels" in values else {}
    return fields | {name: values[value] for name, value in names.items() if value in values}


def as_trained(batch: PackedBatch | Rows) -> PackedBatch:
    """The batch as tensors; ValueError if its labels would train on rejected answers."""
    batch = as_tensors(batch)
    sides = batch.extra.get("pair_sides")
    if sides is not None and bool((sides == REJECTED).any()):
        raise ValueError(
            "this adapter gives a trainer labels of both sides of preference pairs, which would "
            "train on the rejected answers; use PackedLoader(sides='chosen'), or pair_log_probs "
            "with to_hf(batch, sides='both')"
        )
    return batch


def labels_of(batch: PackedBatch, kind: LabelKind) -> Tensor:
    """Labels of the batch in this convention; ValueError if it has none."""
    labels = batch.labels_as(kind)
    if labels is None:
        raise ValueError("the batch has no labels; ask PackedLoader for labels='hf' or 'shifted'")
    return labels


def loss_divisor(labels: Tensor) -> dict[str, Tensor | int]:
    """num_items_in_batch for labels in which nothing is trained, such as those of filler packs.

    The loss of transformers is then 0, and not NaN, the mean of no values. labels: int64, any
    shape. On a GPU the number of trained tokens is always there, as a tensor: to see whether it is
    needed would mean to wait for the GPU.
    """
    trained = labels != NO_LOSS
    if labels.device.type != "cpu":
        return {"num_items_in_batch": trained.sum().clamp(min=1)}
    return {} if bool(trained.any()) else {"num_items_in_batch": 1}


def to_hf(batch: PackedBatch | Rows, *, sides: Literal["both"] | None = None) -> dict[str, Any]:
    """Keyword arguments of a transformers causal LM: `model(**to_hf(batch))`.

    For SDPA, eager, flex and flash-attention.

    input_ids, position_ids, labels: int64 [1, T]. cu_seq_lens_q and _k: int32 [S + 1], the same
    tensor. max_length_q and _k: int. use_cache: False, because with a cache transformers does not
    look for packed sequences in position_ids. seq_idx: int32 [1, T], which state-space and
    convolution layers need; models without such layers ignore it. num_items_in_batch: 1 if nothing
    in the batch is trained, so that the loss is 0; on a GPU always, the number of trained tokens.
    In a Trainer set remove_unused_columns=False; rows with input_ids and no boundaries are then
    documents. Tested with transformers 4.57.6 and 5.23.

    sides: "both" for a batch with both sides of preference pairs, which is a ValueError without it.
    There are no labels then: the loss of a model would train on the rejected answers, and
    `pair_log_probs` does not.

    Some models do not pass position_ids to their attention mask (gpt_oss, opt, falcon): use
    `to_hf_4d`, or flash-attention. Some cannot be isolated (mamba, bloom): see the table in
    docs/isolation.md, and check your model with `verify_isolation`.
    """
    return _fields(_as_documents(batch), "hf", sides)


def to_trl(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields that TRL's padding-free collator makes from rows with input_ids and seq_lengths.

    SFTTrainer(data_collator=to_trl, args=SFTConfig(remove_unused_columns=False,
    dataset_kwargs={"skip_prepare_dataset": True}, ...)) trains on load_from_disk rows as they are.
    Tested with TRL 1.16 on transformers 4.57.6 and 5.23.
    """
    return _fields(_as_documents(batch), "trl")


def to_axolotl(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of Axolotl's V2 collator for packed sequences.

    input_ids, position_ids, labels int64 [1, T]; use_cache False.

    No attention_mask: since 0.19 Axolotl drops it too. Do not set sample_packing: true for packed
    rows: Axolotl's add_position_ids would then number a pack as one document. Tested in Trainers of
    transformers 4.57.6 and 5.23, and with the collator of Axolotl 0.19.0 in those of 5.16.1, which
    it requires, and 5.23.
    """
    return _fields(batch, "axolotl")


def to_llama_factory(batch: PackedBatch | Rows, *, mask_dtype: Any = None) -> dict[str, Any]:
    """Fields of LLaMA-Factory's neat_packing.

    input_ids, position_ids, labels int64 [1, T]; use_cache False.

    mask_dtype: None for flash-attention, where LLaMA-Factory drops the mask too; None is also right
    for SDPA, eager and flex. The model's dtype adds the mask that LLaMA-Factory gives SDPA and
    eager: attention_mask of that dtype [1, 1, T, T], 0 where a token sees another and the dtype's
    lowest value elsewhere. It has T * T values; filler sees nothing. Tested with the models and
    Trainers of transformers 4.57.6 and 5.23, and the SFT trainer and mask of LLaMA-Factory 0.9.5.
    """
    batch = as_tensors(batch)
    fields = _fields(batch, "llama_factory")
    if mask_dtype is not None:
        fields["attention_mask"] = block_diagonal_mask(segment_numbers(batch), mask_dtype)
    return fields


def to_hf_4d(
    batch: PackedBatch | Rows,
    config: Any,
    *,
    dtype: Any = None,
    sides: Literal["both"] | None = None,
) -> dict[str, Any]:
    """Arguments of `to_hf` with the boundaries as a mask.

    For models that do not read boundaries from position_ids, with SDPA or eager attention.

    config: `model.config`, for its sliding windows. dtype: dtype of the mask, by default that of
    the config, or float32. attention_mask: float [1, 1, T, T], 0 where a token sees another and the
    dtype's lowest value elsewhere; for models with both kinds of layers a dict of two masks,
    full_attention and sliding_attention. Each has T * T values. Filler sees itself. As a
    data_collator: `functools.partial(to_hf_4d, config=model.config)`. sides: as in `to_hf`.

    ValueError if the model has chunked attention, which such a mask cannot express.
    """
    import torch

    batch = as_tensors(batch)
    fields = _fields(batch, "hf_4d", sides)
    dtype = dtype or getattr(config, "dtype", None) or torch.float32
    numbers = to_seq_idx(batch) + 1  # filler is a segment, which sees itself
    fields["attention_mask"] = masks_of_layers(
        config, lambda window: block_diagonal_mask(numbers, dtype, window)
    )
    return fields


def to_torchtune(
    batch: PackedBatch | Rows, *, padding_idx: int = 0, ignore_idx: int = NO_LOSS
) -> dict[str, Tensor]:
    """Batch of torchtune's padded_collate_packed.

    tokens, labels, input_pos int64 [1, T], labels unshifted, mask.

    mask: bool [1, T, T], True where a token sees another; for a batch on a GPU a BlockMask, as in
    torchtune. padding_idx, ignore_idx: torchtune's recipes pass them to a collate_fn. Nothing is
    padded, so padding_idx has no effect; ignore_idx is the label without loss. Tested with
    PackedDataset and models of torchtune 0.6.1.
    """
    batch = as_tensors(batch)
    labels = labels_of(batch, "hf").masked_fill(batch.labels_as("hf") == NO_LOSS, ignore_idx)
    segment = to_seq_idx(batch)
    mask = (segment[:, :, None] == segment[:, None, :]).tril()
    if batch.tokens.is_cuda:
        mask = to_flex_block_mask(batch)
    return _fields(batch, "torchtune") | {"labels": labels[None], "mask": mask}


def to_torchtitan(
    batch: PackedBatch | Rows, *, version: Literal["0.3", "main"]
) -> tuple[dict[str, Tensor], Tensor]:
    """Batch of torchtitan's dataloader.

    ({"input", "positions"}, labels of the next token), all int64.

    version: "0.3" for release 0.3.0, [1, T]; "main" for later code (since 73aed7f6c), [T]. There is
    no default: main accepts [1, T] without an error and merges the documents. The trainer makes its
    masks for Flex and Varlen attention from positions; with its SDPA, documents see each other.
    Tested with create_varlen_metadata_for_document and get_document_mask_mod of 0.3.0; "main"
    follows the code of b5bcd76c.
    """
    if version not in ("0.3", "main"):
        raise ValueError(
            f"torchtitan's version is {version!r}; expected '0.3', for [1, T], or 'main', for [T]"
        )
    batch = as_tensors(batch)
    fields, labels = _fields(batch, "torchtitan"), labels_of(batch, "shifted")
    if version == "main":
        return {name: value[0] for name, value in fields.items()}, labels
    return fields, labels[None]


def to_megatron(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of Megatron-Core's models.

    tokens, position_ids, labels of the next token int64 [1, T], loss_mask float32 [1, T], and
    packed_seq_params, the keyword arguments of PackedSeqParams.

    cu_seqlens_q and _kv: int32 [S + 1]; where segments end in padding they count real tokens, and
    cu_seqlens_q_padded and _kv_padded are the boundaries with padding. max_seqlen_q and _kv: int.
    total_tokens: int, T, from which hybrid models number the segments for their state-space layers;
    left out if the installed Megatron-Core is older than 0.17 and has no such field. Tested with
    PackedSeqParams of Megatron-Core 0.16.1; follows the code of its main branch (d98e8a64).
    """
    import torch

    batch = as_tensors(batch)
    labels = labels_of(batch, "shifted")
    cu_seqlens, longest = batch.cu_seqlens, batch.max_seqlen
    params: dict[str, Any] = {"qkv_format": "thd", "max_seqlen_q": longest}
    params["max_seqlen_kv"] = longest
    if _takes_total_tokens():
        params["total_tokens"] = len(batch)
    if batch.segment_lengths is not None:
        params |= {"cu_seqlens_q_padded": cu_seqlens, "cu_seqlens_kv_padded": cu_seqlens}
        cu_seqlens = torch.zeros_like(cu_seqlens)
        cu_seqlens[1:] = batch.segment_lengths.cumsum(0)
    params |= {"cu_seqlens_q": cu_seqlens, "cu_seqlens_kv": cu_seqlens}
    return _fields(batch, "megatron") | {
        # Megatron looks up every label before it applies the mask, so -100 would be out of range.
        "labels": torch.where(labels == NO_LOSS, 0, labels)[None],
        "loss_mask": (labels != NO_LOSS).float()[None],
        "packed_seq_params": params,
    }


@cache
def _takes_total_tokens() -> bool:
    """Return False only if the installed Megatron-Core has no PackedSeqParams.total_tokens."""
    try:
        from megatron.core.packed_seq_params import PackedSeqParams
    except ImportError:
        return True
    return "total_tokens" in PackedSeqParams.__dataclass_fields__


def to_olmo(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of OLMo-core's collator.

    input_ids, labels of the next token int64 [n, T], doc_lens int32 [n, S], max_doc_lens list of n
    ints.

    Each row is one instance, as OLMo-core counts them. A shorter row ends in a document of padding;
    doc_lens of a row with fewer documents end in 0. A PackedBatch is one instance, n = 1: use
    packs_per_batch=1, or rows. Tested with the collator and get_cumulative_document_lengths of
    OLMo-core 3.0.0, whose attention with SDPA refuses boundaries: it needs flash-attention.
    """
    import torch
    from torch.nn.functional import pad

    each = [batch] if isinstance(batch, PackedBatch) else [[row] for row in batch]
    packs = [as_trained(pack) for pack in each]
    longest = max(map(len, packs))
    short = [longest - len(pack) for pack in packs]
    both = [*zip(packs, short, strict=True)]
    # Padding is a document: OLMo-core sums doc_lens across all rows, so each row must add up to T.
    lengths = [pad(pack.cu_seqlens.diff(), (0, int(room > 0)), value=room) for pack, room in both]
    labels = [pad(labels_of(pack, "shifted"), (0, room), value=NO_LOSS) for pack, room in both]
    most = max(map(len, lengths))
    return {
        "input_ids": torch.stack([pad(pack.tokens, (0, room)) for pack, room in both]),
        "labels": torch.stack(labels),
        "doc_lens": torch.stack([pad(each, (0, most - len(each))) for each in lengths]),
        "max_doc_lens": [max(pack.max_seqlen, room) for pack, room in both],
    }


def _as_documents(batch: PackedBatch | Rows) -> PackedBatch | Rows:
    """Make rows with input_ids and no boundaries packs of one document."""
    if isinstance(batch, PackedBatch):
        return batch
    packed_columns = {"tokens", "cu_seqlens", "seq_lengths", "position_ids"}
    return [
        row
        if packed_columns & row.keys() or "input_ids" not in row
        else {**row, "seq_lengths": [len(row_tokens(row))]}
        for row in batch
    ]
