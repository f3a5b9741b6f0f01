"""The fields each trainer expects of packed sequences, by its own names, dtypes and shapes.

Every function takes a PackedBatch, or the rows of a `load_from_disk` dataset, so it is also a collate_fn or
data_collator. One sequence [1, T] comes out, and never an attention mask where boundaries are given: a mask, even of
ones, makes trainers throw the boundaries away, and documents see each other with no error. Labels come in the trainer's
convention, whatever the batch has.
"""

from typing import Any

from packprep.schemas import FILLER, NO_LOSS

from .batch import LabelKind, PackedBatch
from .rows import Rows, batch_from_rows

# torch.Tensor. torch is imported only where tensors are made.
Tensor = Any


def to_hf(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Keyword arguments of a transformers causal LM, any attention implementation: `model(**to_hf(batch))`.

    input_ids, position_ids, labels: int64 [1, T]. cu_seq_lens_q and _k: int32 [S + 1], the same tensor. max_length_q
    and _k: int. use_cache: False, for with a cache transformers no longer looks for packed sequences in position_ids.
    In a Trainer set remove_unused_columns=False.
    """
    return to_flattening(batch) | {"use_cache": False}


def to_flattening(batch: PackedBatch | Rows, *, return_seq_idx: bool = False) -> dict[str, Any]:
    """What DataCollatorWithFlattening(return_flash_attn_kwargs=True) makes of the documents; seq_idx int32 [1, T]."""
    batch = _tensors(batch)
    fields = _sequence(batch) | {
        "cu_seq_lens_q": batch.cu_seqlens,
        "cu_seq_lens_k": batch.cu_seqlens,
        "max_length_q": batch.max_seqlen,
        "max_length_k": batch.max_seqlen,
    }
    return fields | {"seq_idx": to_seq_idx(batch)} if return_seq_idx else fields


def to_trl(batch: PackedBatch | Rows) -> dict[str, Any]:
    """What TRL's padding-free collator makes of rows with input_ids and seq_lengths: `to_flattening` with seq_idx.

    SFTTrainer(data_collator=to_trl, args=SFTConfig(remove_unused_columns=False,
    dataset_kwargs={"skip_prepare_dataset": True}, ...)) trains on load_from_disk rows as they are.
    """
    return to_flattening(batch, return_seq_idx=True)


def to_trl_row(row: Any) -> dict[str, Any]:
    """One row by TRL's own column names, for `dataset.map(to_trl_row, remove_columns=dataset.column_names)`.

    input_ids, labels: as stored, labels the ids where there are none. seq_lengths: list of the segments' lengths.
    """
    lengths = [int(end) - int(start) for start, end in zip(row["cu_seqlens"], row["cu_seqlens"][1:], strict=False)]
    return {"input_ids": row["tokens"], "labels": row.get("labels", row["tokens"]), "seq_lengths": lengths}


def to_axolotl(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Axolotl's V2 collator: input_ids, position_ids, labels int64 [1, T] and attention_mask int64 [1, T], which holds
    the number of each token's segment, from 1, and 0 on filler; its get_unpad_data turns that into cu_seqlens."""
    batch = _tensors(batch)
    return _sequence(batch) | {"attention_mask": _segment_mask(batch).long()}


def to_llama_factory(batch: PackedBatch | Rows, *, mask_dtype: Any = None) -> dict[str, Any]:
    """LLaMA-Factory's neat_packing: like `to_axolotl`, with an int32 mask for its flash-attention path.

    mask_dtype: the model's dtype, for its other paths: attention_mask is then float [1, 1, T, T], 0 where a token sees
    another and the dtype's least value elsewhere. That is T * T values; rows of filler see nothing.
    """
    batch = _tensors(batch)
    mask = _segment_mask(batch)
    return _sequence(batch) | {"attention_mask": mask if mask_dtype is None else _block_diagonal(mask, mask_dtype)}


def to_forgather(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Forgather's DataCollatorForCausalLM on packed sequences: input_ids, labels, position_ids int64 [1, T].

    Do not give its own collator these shards' rows: there document_starts means offsets in the pack, not in documents.
    """
    return _sequence(_tensors(batch))


def to_megatron(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Megatron-Core's GPT: tokens, position_ids, labels of the next token int64 [1, T], loss_mask float32 [1, T], and
    packed_seq_params, the keyword arguments of PackedSeqParams.

    Where segments end in padding, cu_seqlens_q and _kv count real tokens and the _padded ones where segments lie.
    """
    import torch

    batch = _tensors(batch)
    labels = _labels(batch, "shifted")
    cu_seqlens = batch.cu_seqlens
    params: dict[str, Any] = {"qkv_format": "thd", "max_seqlen_q": batch.max_seqlen, "max_seqlen_kv": batch.max_seqlen}
    if batch.segment_lengths is not None:
        params |= {"cu_seqlens_q_padded": cu_seqlens, "cu_seqlens_kv_padded": cu_seqlens}
        cu_seqlens = torch.zeros_like(cu_seqlens)
        cu_seqlens[1:] = batch.segment_lengths.cumsum(0)
    params |= {"cu_seqlens_q": cu_seqlens, "cu_seqlens_kv": cu_seqlens}
    return {
        "tokens": batch.tokens[None],
        "position_ids": batch.position_ids[None],
        # Megatron looks labels up before it masks them.
        "labels": torch.where(labels == NO_LOSS, 0, labels)[None],
        "loss_mask": (labels != NO_LOSS).float()[None],
        "packed_seq_params": params,
    }


def to_olmo(batch: PackedBatch | Rows) -> dict[str, Any]:
    """OLMo-core: input_ids, labels of the next token int64 [1, T], doc_lens int32 [1, S], max_doc_lens list of int."""
    batch = _tensors(batch)
    return {
        "input_ids": batch.tokens[None],
        "labels": _labels(batch, "shifted")[None],
        "doc_lens": batch.cu_seqlens.diff()[None],
        "max_doc_lens": [batch.max_seqlen],
    }


def to_torchtitan(batch: PackedBatch | Rows) -> dict[str, Any]:
    """torchtitan: input, positions, labels of the next token int64 [1, T]; attention_masks, the keyword arguments of
    VarlenMetadata: cu_seq_q and _k int32 [S + 1], the same tensor, max_q and _k int."""
    batch = _tensors(batch)
    return {
        "input": batch.tokens[None],
        "positions": batch.position_ids[None],
        "labels": _labels(batch, "shifted")[None],
        "attention_masks": {
            "cu_seq_q": batch.cu_seqlens,
            "cu_seq_k": batch.cu_seqlens,
            "max_q": batch.max_seqlen,
            "max_k": batch.max_seqlen,
        },
    }


def to_seq_idx(batch: PackedBatch | Rows) -> Tensor:
    """int32 [1, T]: each token's segment, from 0, for state-space models (Mamba's seq_idx)."""
    import torch

    batch = _tensors(batch)
    lengths = batch.cu_seqlens.diff()
    segments = torch.arange(len(lengths), dtype=torch.int32, device=lengths.device)
    return torch.repeat_interleave(segments, lengths, output_size=len(batch))[None]


def to_flex_block_mask(batch: PackedBatch | Rows, *, causal: bool = True, window: int | None = None) -> Any:
    """FlexAttention's BlockMask for q, k, v of [1, heads, T, head_dim]: every token sees its own segment, as
    `varlen_attention` does with the same causal and window."""
    from torch.nn.attention.flex_attention import create_block_mask

    batch = _tensors(batch)
    segment = to_seq_idx(batch)[0]

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = segment[query] == segment[key]
        if causal:
            seen = seen & (query >= key)
        if window is not None:
            seen = seen & (query - key <= window) & (key - query <= window)
        return seen

    return create_block_mask(sees, None, None, len(batch), len(batch), device=str(batch.tokens.device))


def _tensors(batch: PackedBatch | Rows) -> PackedBatch:
    return (batch if isinstance(batch, PackedBatch) else batch_from_rows(batch)).torch()


def _labels(batch: PackedBatch, kind: LabelKind) -> Tensor:
    labels = batch.labels_as(kind)
    if labels is None:
        raise ValueError("the batch has no labels; ask PackedLoader for labels='hf' or 'shifted'")
    return labels


def _sequence(batch: PackedBatch) -> dict[str, Any]:
    """input_ids, position_ids and unshifted labels, int64 [1, T]; no labels where the batch has none."""
    fields = {"input_ids": batch.tokens[None], "position_ids": batch.position_ids[None]}
    return fields if batch.labels is None else fields | {"labels": _labels(batch, "hf")[None]}


def _segment_mask(batch: PackedBatch) -> Tensor:
    """int32 [1, T]: number of each token's segment from 1, 0 on filler, which stands behind all others in each pack."""
    import torch

    numbers = torch.arange(1, batch.num_segments + 1, dtype=torch.int32, device=batch.cu_seqlens.device)
    real = None if batch.document_ids is None else batch.document_ids != FILLER
    if real is None and batch.segment_lengths is not None:
        real = batch.segment_lengths > 0
    if real is not None:
        # Filler of one pack may stand before another pack: numbers of documents stay consecutive.
        numbers = real.cumsum(0, dtype=torch.int32) * real
    return torch.repeat_interleave(numbers, batch.cu_seqlens.diff(), output_size=len(batch))[None]


def _block_diagonal(mask: Tensor, dtype: Any) -> Tensor:
    """float [1, 1, T, T] of an int [1, T] mask: 0 where a token sees another, the dtype's least value elsewhere."""
    import torch

    same = (mask[:, None, :] == mask[:, :, None]) & (mask[:, None, :] != 0)
    place = torch.arange(mask.shape[1], device=mask.device)
    seen = same & (place[None, :] <= place[:, None])
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=mask.device)
    return torch.where(seen, torch.zeros((), dtype=dtype, device=mask.device), least)[:, None]
