"""The fields each trainer expects of packed sequences, by its own names, dtypes and shapes.

Every function takes a PackedBatch, or the rows of a `load_from_disk` dataset, so it is also a
collate_fn or data_collator. One sequence [1, T] comes out, without the attention_mask [1, T] that
such trainers know: such a mask, even of ones, makes transformers drop the boundaries, and documents
see each other with no error. With a cache it does not look for them either, so use_cache=False is
among the fields. Labels come in the trainer's convention, whatever the batch has.
`scripts/check_trainers` runs each adapter in its trainer; the docstrings name the versions.
"""

from functools import cache
from itertools import pairwise
from typing import Any, Literal

from packprep.schemas.columns import FILLER, NO_LOSS

from .batch import LabelKind, PackedBatch, Tensor
from .rows import Rows, batch_from_rows


def to_hf(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Keyword arguments of a transformers causal LM: `model(**to_hf(batch))`.

    With SDPA, eager, flex or flash-attention.

    input_ids, position_ids, labels: int64 [1, T]. cu_seq_lens_q and _k: int32 [S + 1], the same
    tensor. max_length_q and _k: int. use_cache: False, for with a cache transformers no longer
    looks for packed sequences in position_ids. seq_idx: int32 [1, T], which state-space and
    convolution layers need; models without such layers ignore it. In a Trainer set
    remove_unused_columns=False. Proven with transformers 4.57.6 and 5.23.

    Some models do not hand position_ids on to their attention mask (gpt_oss, opt, falcon): use
    `to_hf_4d`, or flash-attention. Some cannot be isolated (mamba, bloom); docs/isolation.md has a
    table, `verify_isolation` a check.
    """
    return to_flattening(batch, return_seq_idx=True)


def to_hf_4d(batch: PackedBatch | Rows, config: Any, *, dtype: Any = None) -> dict[str, Any]:
    """Arguments of `to_hf` with the boundaries as a mask.

    For models that do not read them from position_ids, with SDPA or eager.

    config: `model.config`, for its sliding windows. dtype: of the mask, by default the config's, or
    float32. attention_mask: float [1, 1, T, T], 0 where a token sees another and the dtype's least
    value elsewhere; for models with both kinds of layers a dict of two, full_attention and
    sliding_attention. Each has T * T values. Filler sees itself. As a data_collator:
    `functools.partial(to_hf_4d, config=model.config)`.

    ValueError if the model has chunked attention, which no such mask gives.
    """
    import torch

    batch = _tensors(batch)
    kinds = getattr(config, "layer_types", None) or ()
    if "chunked_attention" in kinds:
        raise ValueError(
            "the model has layers of chunked attention, which a 4-D mask does not give; use to_hf"
        )
    dtype = dtype or getattr(config, "dtype", None) or torch.float32
    window = getattr(config, "sliding_window", None)
    seq_idx = to_seq_idx(batch)
    mask: Any = _block_diagonal(seq_idx + 1, dtype)
    if window is not None and (not kinds or "sliding_attention" in kinds):
        sliding = _block_diagonal(seq_idx + 1, dtype, window)
        mask = {"full_attention": mask, "sliding_attention": sliding} if kinds else sliding
    return _sequence(batch) | {"attention_mask": mask, "seq_idx": seq_idx, "use_cache": False}


def to_flattening(batch: PackedBatch | Rows, *, return_seq_idx: bool = False) -> dict[str, Any]:
    """Fields of DataCollatorWithFlattening, and use_cache.

    As it makes them of the documents with return_flash_attn_kwargs=True.

    Shapes and dtypes are those of `to_hf`; return_seq_idx adds seq_idx, int32 [1, T]. As in that
    collator, a row with input_ids and no boundaries is one document; so packed rows must keep their
    cu_seqlens or seq_lengths (remove_unused_columns=False). Proven with transformers 4.57.6 and
    5.23.
    """
    batch = _tensors(_as_documents(batch))
    fields = _sequence(batch) | {
        "cu_seq_lens_q": batch.cu_seqlens,
        "cu_seq_lens_k": batch.cu_seqlens,
        "max_length_q": batch.max_seqlen,
        "max_length_k": batch.max_seqlen,
    }
    return fields | {"seq_idx": to_seq_idx(batch)} if return_seq_idx else fields


def to_trl(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields that TRL's padding-free collator makes of rows with input_ids and seq_lengths.

    Those of `to_flattening`, and seq_idx.

    SFTTrainer(data_collator=to_trl, args=SFTConfig(remove_unused_columns=False,
    dataset_kwargs={"skip_prepare_dataset": True}, ...)) trains on load_from_disk rows as they are;
    `check_trl` holds a config to that. Proven with TRL 1.16 on transformers 4.57.6 and 5.23.
    """
    return to_flattening(batch, return_seq_idx=True)


def to_trl_row(row: Any) -> dict[str, Any]:
    """One row by TRL's own column names.

    Use: `dataset.map(to_trl_row, remove_columns=dataset.column_names)`.

    input_ids: list of int, as stored. labels: list of int, as stored, or the ids where none are;
    -100 on the first token of every segment, so that no label crosses a boundary. seq_lengths: list
    of int, the segments' lengths. Without SFTConfig(padding_free=True, max_length=None) TRL uses no
    boundaries: `check_trl`. Proven with TRL 1.16 on transformers 4.57.6 and 5.23.
    """
    boundaries = [int(at) for at in row["cu_seqlens"]]
    labels = [int(label) for label in row.get("labels", row["tokens"])]
    for start in boundaries[:-1]:
        labels[start] = NO_LOSS
    lengths = [end - start for start, end in pairwise(boundaries)]
    return {
        "input_ids": [int(token) for token in row["tokens"]],
        "labels": labels,
        "seq_lengths": lengths,
    }


def check_trl(config: Any, *, data_collator: Any = None) -> Any:
    """Return the SFTConfig if packed rows stay isolated with it.

    ValueError with each wrong setting if not.

    data_collator: the one SFTTrainer gets; None for TRL's own, on rows of `to_trl_row`, else e.g.
    `to_trl`. Example: SFTTrainer(model, check_trl(SFTConfig(padding_free=True, max_length=None)),
    train_dataset=rows)
    """
    expected: dict[str, Any] = {"packing": False, "eval_packing": False}
    if data_collator is None:
        expected |= {"padding_free": True, "max_length": None}
        purpose = "for rows of to_trl_row and TRL's own collator"
    else:
        expected |= {"padding_free": False, "remove_unused_columns": False}
        purpose = "for a data_collator of packprep"
    found = {name: getattr(config, name) for name in expected}
    if found["eval_packing"] is None:  # TRL then takes the value of packing
        found["eval_packing"] = found["packing"]
    if data_collator is not None:
        expected["dataset_kwargs"] = {"skip_prepare_dataset": True}
        skips = (config.dataset_kwargs or {}).get("skip_prepare_dataset")
        found["dataset_kwargs"] = expected["dataset_kwargs"] if skips else config.dataset_kwargs
    wrong = [name for name, value in expected.items() if found[name] != value]
    if wrong:
        raise ValueError(
            f"the SFTConfig has {', '.join(f'{name}={found[name]!r}' for name in wrong)}; expected "
            f"{', '.join(f'{name}={expected[name]!r}' for name in wrong)} {purpose}; set that, or "
            "TRL drops the "
            "boundaries of packed documents"
        )
    return config


def to_axolotl(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of Axolotl's V2 collator where it packs.

    input_ids, position_ids, labels int64 [1, T]; use_cache False.

    No attention_mask: Axolotl itself drops it since 0.19. Do not set sample_packing: true for
    packed rows, for its add_position_ids then numbers a pack as one document. Proven in Trainers of
    transformers 4.57.6 and 5.23, and with the collator of Axolotl 0.19.0 in those of 5.16.1, which
    it requires, and 5.23.
    """
    return _sequence(_tensors(batch))


def to_llama_factory(batch: PackedBatch | Rows, *, mask_dtype: Any = None) -> dict[str, Any]:
    """Fields of LLaMA-Factory's neat_packing.

    input_ids, position_ids, labels int64 [1, T]; use_cache False.

    mask_dtype: None for flash-attention, where LLaMA-Factory drops the mask too; SDPA, eager and
    flex are right as well. The model's dtype for what LLaMA-Factory gives SDPA and eager:
    attention_mask of that dtype [1, 1, T, T], 0 where a token sees another and the dtype's least
    value elsewhere. That is T * T values; rows of filler see nothing. Proven with the models and
    Trainers of transformers 4.57.6 and 5.23; the mask equals LLaMA-Factory 0.9.5's.
    """
    batch = _tensors(batch)
    mask = (
        {}
        if mask_dtype is None
        else {"attention_mask": _block_diagonal(_segment_mask(batch), mask_dtype)}
    )
    return _sequence(batch) | mask


def to_forgather(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of Forgather's DataCollatorForCausalLM on packed sequences, and use_cache False.

    input_ids, labels, position_ids int64 [1, T].

    Do not give its own collator these shards' rows: there document_starts means offsets in the
    pack, not in documents. Proven with the models and Trainers of transformers 4.57.6 and 5.23.
    """
    return _sequence(_tensors(batch))


def to_megatron(batch: PackedBatch | Rows) -> dict[str, Any]:
    """Fields of Megatron-Core's models.

    tokens, position_ids, labels of the next token int64 [1, T], loss_mask float32 [1, T], and
    packed_seq_params, the keyword arguments of PackedSeqParams.

    cu_seqlens_q and _kv: int32 [S + 1]; where segments end in padding they count real tokens, and
    the _padded ones say where segments lie. max_seqlen_q and _kv: int. total_tokens: int, T, from
    which hybrid models number the segments for their state-space layers; left out where the
    installed Megatron-Core is older than 0.17 and has no such field. Proven with PackedSeqParams of
    Megatron-Core 0.16.1, and the rule of its main (d98e8a64).
    """
    import torch

    batch = _tensors(batch)
    labels = _labels(batch, "shifted")
    cu_seqlens = batch.cu_seqlens
    params: dict[str, Any] = {
        "qkv_format": "thd",
        "max_seqlen_q": batch.max_seqlen,
        "max_seqlen_kv": batch.max_seqlen,
    }
    if _megatron_takes_total_tokens():
        params["total_tokens"] = len(batch)
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
    """Fields of OLMo-core's collator.

    input_ids, labels of the next token int64 [n, T], doc_lens int32 [n, S], max_doc_lens list of n
    ints.

    Rows give an instance each, as OLMo-core counts them: shorter ones end in a document of padding,
    and doc_lens in 0 where a row has fewer documents. A PackedBatch is one instance, n = 1: use
    packs_per_batch=1, or rows. Proven with the collator and get_cumulative_document_lengths of
    OLMo-core 3.0.0.
    """
    import torch
    from torch.nn.functional import pad

    packs = (
        [_tensors(batch)] if isinstance(batch, PackedBatch) else [_tensors([row]) for row in batch]
    )
    longest = max(map(len, packs))
    short = [longest - len(pack) for pack in packs]
    # Padding is a document: OLMo-core makes offsets through all rows of doc_lens, so each row must
    # add up to T.
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
                pad(_labels(pack, "shifted"), (0, room), value=NO_LOSS)
                for pack, room in zip(packs, short, strict=True)
            ]
        ),
        "doc_lens": torch.stack([pad(each, (0, most - len(each))) for each in lengths]),
        "max_doc_lens": [
            max(pack.max_seqlen, room) for pack, room in zip(packs, short, strict=True)
        ],
    }


def to_torchtitan(
    batch: PackedBatch | Rows, *, version: Literal["0.3", "main"]
) -> tuple[dict[str, Tensor], Tensor]:
    """Batch of torchtitan's dataloader.

    ({"input", "positions"}, labels of the next token), all int64.

    version: "0.3" for release 0.3.0, [1, T]; "main" for what follows (since 73aed7f6c), [T]. There
    is no default, for main takes [1, T] without an error and merges the documents. The trainer
    makes its masks from positions, for Flex and Varlen attention; with its SDPA documents see each
    other. Proven with create_varlen_metadata_for_document of 0.3.0, and the rule of main
    (b5bcd76c).
    """
    if version not in ("0.3", "main"):
        raise ValueError(
            f"torchtitan's version is {version!r}; expected '0.3', for [1, T], or 'main', for [T]"
        )
    batch = _tensors(batch)
    fields = {"input": batch.tokens, "positions": batch.position_ids}
    labels = _labels(batch, "shifted")
    if version == "main":
        return fields, labels
    return {name: value[None] for name, value in fields.items()}, labels[None]


def to_torchtune(
    batch: PackedBatch | Rows, *, padding_idx: int = 0, ignore_idx: int = NO_LOSS
) -> dict[str, Any]:
    """Batch of torchtune's padded_collate_packed.

    tokens, labels, input_pos int64 [1, T], labels unshifted, mask.

    mask: bool [1, T, T], True where a token sees another; of a batch on a GPU a BlockMask, as
    torchtune makes there. padding_idx, ignore_idx: torchtune's recipes pass them to a collate_fn.
    Nothing is padded, so padding_idx has no effect; ignore_idx is the label without loss. Proven
    with PackedDataset and models of torchtune 0.6.1.
    """
    batch = _tensors(batch)
    labels = _labels(batch, "hf")
    if batch.tokens.is_cuda:
        mask = to_flex_block_mask(batch)
    else:
        segment = to_seq_idx(batch)
        mask = (segment[:, :, None] == segment[:, None, :]).tril()
    return {
        "tokens": batch.tokens[None],
        "labels": labels.masked_fill(labels == NO_LOSS, ignore_idx)[None],
        "input_pos": batch.position_ids[None],
        "mask": mask,
    }


def to_seq_idx(batch: PackedBatch | Rows) -> Tensor:
    """int32 [1, T]: each token's segment, from 0, for state-space models (Mamba's seq_idx)."""
    import torch

    batch = _tensors(batch)
    lengths = batch.cu_seqlens.diff()
    segments = torch.arange(len(lengths), dtype=torch.int32, device=lengths.device)
    return torch.repeat_interleave(segments, lengths, output_size=len(batch))[None]


def to_flex_block_mask(
    batch: PackedBatch | Rows, *, causal: bool = True, window: int | None = None
) -> Any:
    """FlexAttention's BlockMask for q, k, v of [1, heads, T, head_dim].

    Every token sees its own segment, as `varlen_attention` does with the same causal and window.
    """
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

    return create_block_mask(
        sees, None, None, len(batch), len(batch), device=str(batch.tokens.device)
    )


def _tensors(batch: PackedBatch | Rows) -> PackedBatch:
    return (batch if isinstance(batch, PackedBatch) else batch_from_rows(batch)).torch()


def _as_documents(batch: PackedBatch | Rows) -> PackedBatch | Rows:
    """The same batch; rows with input_ids and no boundaries are packs of one document."""
    if isinstance(batch, PackedBatch):
        return batch
    packed = {"tokens", "cu_seqlens", "seq_lengths", "position_ids"}
    return [
        row
        if packed & row.keys() or "input_ids" not in row
        else {**row, "seq_lengths": [len(row["input_ids"])]}
        for row in batch
    ]


@cache
def _megatron_takes_total_tokens() -> bool:
    """False only where a Megatron-Core is installed whose PackedSeqParams has no total_tokens."""
    try:
        from megatron.core.packed_seq_params import PackedSeqParams
    except ImportError:
        return True
    return "total_tokens" in PackedSeqParams.__dataclass_fields__


def _labels(batch: PackedBatch, kind: LabelKind) -> Tensor:
    labels = batch.labels_as(kind)
    if labels is None:
        raise ValueError("the batch has no labels; ask PackedLoader for labels='hf' or 'shifted'")
    return labels


def _sequence(batch: PackedBatch) -> dict[str, Any]:
    """Fields input_ids, position_ids and unshifted labels, int64 [1, T].

    No labels where the batch has none. use_cache is False: transformers before 5 turns the cache on
    in a Trainer, every version in a bare call.
    """
    fields = {
        "input_ids": batch.tokens[None],
        "position_ids": batch.position_ids[None],
        "use_cache": False,
    }
    return fields if batch.labels is None else fields | {"labels": _labels(batch, "hf")[None]}


def _segment_mask(batch: PackedBatch) -> Tensor:
    """Number of each token's segment, from 1, int32 [1, T].

    0 on filler, which comes behind all others in each pack.
    """
    import torch

    numbers = torch.arange(
        1, batch.num_segments + 1, dtype=torch.int32, device=batch.cu_seqlens.device
    )
    real = None if batch.document_ids is None else batch.document_ids != FILLER
    if real is None and batch.segment_lengths is not None:
        real = batch.segment_lengths > 0
    if real is not None:
        # Filler of one pack may stand before another pack: numbers of documents stay consecutive.
        numbers = real.cumsum(0, dtype=torch.int32) * real
    return torch.repeat_interleave(numbers, batch.cu_seqlens.diff(), output_size=len(batch))[None]


def _block_diagonal(mask: Tensor, dtype: Any, window: int | None = None) -> Tensor:
    """Additive mask, float [1, 1, T, T], of an int [1, T] mask.

    0 where a token sees another, the dtype's least value elsewhere.

    window: a token sees that many, itself among them, as transformers counts.
    """
    import torch

    same = (mask[:, None, :] == mask[:, :, None]) & (mask[:, None, :] != 0)
    place = torch.arange(mask.shape[1], device=mask.device)
    back = place[:, None] - place[None, :]
    seen = same & (back >= 0) if window is None else same & (back >= 0) & (back < window)
    least = torch.full((), torch.finfo(dtype).min, dtype=dtype, device=mask.device)
    return torch.where(seen, torch.zeros((), dtype=dtype, device=mask.device), least)[:, None]
