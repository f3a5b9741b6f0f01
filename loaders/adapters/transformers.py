"""Arguments of transformers models."""

from collections.abc import Callable
from typing import Any, Literal

from ..batch import PackedBatch, Tensor
from ..rows import Rows, row_tokens
from .boundaries import additive_mask, to_seq_idx, tree_mask
from .fields import as_tensors, sequence_fields


def to_hf(batch: PackedBatch | Rows, *, sides: Literal["both"] | None = None) -> dict[str, Any]:
    """Keyword arguments of a transformers causal LM: `model(**to_hf(batch))`.

    For SDPA, eager, flex and flash-attention.

    input_ids, position_ids, labels: int64 [1, T]. cu_seq_lens_q and _k: int32 [S + 1], the same
    tensor. max_length_q and _k: int. use_cache: False, because with a cache transformers does not
    look for packed sequences in position_ids. seq_idx: int32 [1, T], which state-space and
    convolution layers need; models without such layers ignore it. num_items_in_batch: 1 if nothing
    in the batch is trained, so that the loss is 0; on a GPU always, the number of trained tokens.
    In a Trainer set remove_unused_columns=False. Tested with transformers 4.57.6 and 5.23.

    sides: "both" for a batch with both sides of preference pairs, which is a ValueError without it.
    There are no labels then: the loss of a model would train on the rejected answers, and
    `pair_log_probs` does not.

    Some models do not pass position_ids to their attention mask (gpt_oss, opt, falcon): use
    `to_hf_4d`, or flash-attention. Some cannot be isolated (mamba, bloom): see the table in
    docs/train/isolation.md, and check your model with `verify_isolation`.
    """
    return to_flattening(batch, return_seq_idx=True, sides=sides)


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
    data_collator: `functools.partial(to_hf_4d, config=model.config)`.

    A batch of trees gives input_ids, position_ids and the mask, without labels: the loss of a model
    shifts labels, and `tree_loss` does not. sides: as in `to_hf`.

    ValueError if the model has chunked attention, which such a mask cannot express.
    """
    batch = as_tensors(batch, trees=True, sides=sides == "both")
    import torch

    dtype = dtype or getattr(config, "dtype", None) or torch.float32
    mask = masks_of_layers(config, lambda window: additive_mask(tree_mask(batch, window), dtype))
    fields = sequence_fields(batch) | {"attention_mask": mask}
    trees = batch.segment_parents is not None
    if trees or sides == "both":
        _without_labels(fields)
    return fields if trees else fields | {"seq_idx": to_seq_idx(batch)}


def masks_of_layers(config: Any, mask: Callable[[int | None], Tensor]) -> Any:
    """The mask of a model with such a config: that of its layers, or a dict by kind of layer.

    mask: f(window), window None or tokens that a token sees. Of a model of images and text, the
    config of its text part counts. ValueError for chunked attention.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = getattr(text, "layer_types", None) or ()
    if "chunked_attention" in kinds:
        raise ValueError(
            "the model has layers with chunked attention, which a 4-D mask cannot express; use "
            "to_hf"
        )
    window = getattr(text, "sliding_window", None)
    if window is None or (kinds and "sliding_attention" not in kinds):
        return mask(None)
    if kinds:
        return {"full_attention": mask(None), "sliding_attention": mask(window)}
    return mask(window)


def to_flattening(
    batch: PackedBatch | Rows,
    *,
    return_seq_idx: bool = False,
    sides: Literal["both"] | None = None,
) -> dict[str, Any]:
    """Fields of DataCollatorWithFlattening(return_flash_attn_kwargs=True), and use_cache.

    Shapes and dtypes are those of `to_hf`; return_seq_idx adds seq_idx, int32 [1, T]. As in that
    collator, a row with input_ids and no boundaries is one document. Packed rows must therefore
    keep their cu_seqlens or seq_lengths (remove_unused_columns=False). sides: as in `to_hf`. Tested
    with transformers 4.57.6 and 5.23.
    """
    batch = as_tensors(_as_documents(batch), sides=sides == "both")
    fields = sequence_fields(batch) | {
        "cu_seq_lens_q": batch.cu_seqlens,
        "cu_seq_lens_k": batch.cu_seqlens,
        "max_length_q": batch.max_seqlen,
        "max_length_k": batch.max_seqlen,
    }
    if sides == "both":
        _without_labels(fields)
    return fields | {"seq_idx": to_seq_idx(batch)} if return_seq_idx else fields


def _without_labels(fields: dict[str, object]) -> None:
    for name in ("labels", "num_items_in_batch"):
        fields.pop(name, None)


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
