"""Batches of rows [B, T], a pack or a segment in each, padded to one length.

For models and trainers that take rows of one length: SDPA and eager attention with several packs a
step, as Axolotl's multipack_real_batches and LLaMA-Factory's neat_packing, and evaluation of single
documents. One sequence [1, T] without padding, as `to_hf` makes it, is faster.
"""

from typing import Any, Literal, NamedTuple, get_args

from ..schemas.columns import NO_LOSS
from .adapters import as_trained, labels_of, loss_divisor
from .batch import PackedBatch, Tensor
from .masks import block_diagonal_mask, masks_of_layers, real_segments
from .rows import Rows

Mask = Literal["padding", "segments", "4d"]
Spelled = Literal["padding", "segments"]
Unit = Literal["packs", "segments"]
Positions = Literal["restart", "continue"]
PaddingPositions = Literal["restart", "zero"]


def to_padded(
    batch: PackedBatch | Rows,
    padding: Literal["longest"] | int = "longest",
    *,
    pad_to_multiple_of: int = 1,
    mask: Mask | None = None,
    attention_mask: Spelled | None = None,
    rows: Unit = "packs",
    positions: Positions = "restart",
    padding_positions: PaddingPositions = "restart",
    pad_token_id: int = 0,
    config: Any = None,
    dtype: Any = None,
) -> dict[str, Any]:
    """Rows of one length: input_ids, position_ids and unshifted labels, int64 [B, T]; use_cache.

    padding: "longest", or tokens of every row; T is rounded up to pad_to_multiple_of. Padding has
    pad_token_id, label -100, and positions from 0, or all 0 with padding_positions="zero".
    rows: "packs", or "segments" for a row of each, which is evaluation without packing.

    mask: None leaves the boundaries to the position_ids, which SDPA, eager and flex attention of
    transformers read. "4d" is `attention_mask` [B, 1, T, T] of dtype, 0 where a token sees another
    and the dtype's lowest value elsewhere; pass config=model.config if the model has sliding
    windows. "segments" is `segment_ids`, int64 [B, T], 1, 1, 2, 2, 0 for padding, for attention of
    your own. "padding" is `attention_mask`, int64 [B, T], 1 and 0.
    attention_mask: the same numbers under this name, for code that takes them so. "segments" is for
    models whose own code reads the numbers, such as remote code that Axolotl patched; models of
    transformers read them as 1 and 0, and documents see each other.
    positions: "continue" counts on across the segments of a row (Axolotl's squash_position_ids).

    ValueError for a call that leaves no boundaries: mask="padding" or positions="continue" alone,
    with several segments in a row. Check yours: `verify_isolation(model, to_padded(...))`. Tested
    with the collators of Axolotl 0.19.0 and LLaMA-Factory 0.9.5.
    """
    _check(
        padding,
        pad_to_multiple_of,
        mask,
        attention_mask,
        rows=rows,
        positions=positions,
        padding_positions=padding_positions,
    )
    import torch

    batch = as_trained(batch)

    if rows == "segments" and not real_segments(batch).any():
        raise ValueError("the batch has no segment, only filler; there is nothing to make rows of")
    place = _places(batch, rows)
    longest = int(place.lengths.max())
    if padding != "longest" and padding < longest:
        raise ValueError(
            f"padding is {padding} and the longest row has {longest} tokens; expected as many, or "
            "'longest'"
        )
    width = longest if padding == "longest" else int(padding)
    width = max(-(-width // pad_to_multiple_of), 1) * pad_to_multiple_of
    if (several := place.segments > 1).any():
        hidden = positions == "continue" and "segments" not in (mask, attention_mask)
        if mask == "padding" or (hidden and mask != "4d"):
            setting = "positions='continue'" if mask is None else f"mask={mask!r}"
            raise ValueError(
                f"row {int(several.nonzero()[0])} has {int(place.segments.max())} segments, and "
                f"with {setting} no model can tell them apart; choose mask='4d' or 'segments', or "
                "rows='segments'"
            )

    def filled(values: Tensor, padded: Any) -> Tensor:
        out = torch.full((len(place.lengths), width), padded, device=values.device)
        out[place.row, place.column] = values[place.token]
        return out

    place_in_row = torch.arange(width, device=batch.tokens.device)
    after = place_in_row - place.lengths[:, None]  # of the row's last token
    position_ids = place_in_row.expand_as(after).contiguous()
    if positions == "restart":
        position_ids = filled(batch.position_ids, 0)
    paddings = after if padding_positions == "restart" else 0
    fields = {
        "input_ids": filled(batch.tokens, pad_token_id),
        "position_ids": torch.where(after >= 0, paddings, position_ids),
        "use_cache": False,
    }
    if batch.labels is not None:
        fields["labels"] = filled(labels_of(batch, "hf"), NO_LOSS)
        fields |= loss_divisor(fields["labels"])
    numbers = filled(place.numbers, 0)
    if mask == "segments":
        fields["segment_ids"] = numbers
    elif mask == "4d":
        dtype = dtype or getattr(config, "dtype", None) or torch.float32
        fields["attention_mask"] = masks_of_layers(
            config, lambda window: block_diagonal_mask(numbers, dtype, window)
        )
    if attention_mask or mask == "padding":
        number = attention_mask == "segments"
        fields["attention_mask"] = numbers if number else (numbers > 0).long()
    return fields


def _check(padding: Any, multiple: int, mask: Any, attention_mask: Any, **choices: Any) -> None:
    allowed = {
        "mask": (mask, (None, *get_args(Mask))),
        "attention_mask": (attention_mask, (None, *get_args(Spelled))),
        "rows": (choices["rows"], get_args(Unit)),
        "positions": (choices["positions"], get_args(Positions)),
        "padding_positions": (choices["padding_positions"], get_args(PaddingPositions)),
    }
    for name, (value, values) in allowed.items():
        if value not in values:
            raise ValueError(f"{name} is {value!r}; expected one of {', '.join(map(repr, values))}")
    if padding != "longest" and not (isinstance(padding, int) and padding > 0):
        raise ValueError(f"padding is {padding!r}; expected 'longest' or a number of tokens")
    if multiple < 1:
        raise ValueError(f"pad_to_multiple_of is {multiple}; expected 1 or more")
    if attention_mask and mask in ("padding", "4d"):
        raise ValueError(
            f"attention_mask={attention_mask!r} and mask={mask!r} are both the attention_mask; "
            "choose one"
        )


class _Places(NamedTuple):
    """Places of tokens in rows.

    token, row, column: int64 [tokens], of each token that is kept.
    numbers: int64 [T], of each token's segment in its row from 1, 0 for filler.
    lengths, segments: int64 [B], of each row.
    """

    token: Tensor
    row: Tensor
    column: Tensor
    numbers: Tensor
    lengths: Tensor
    segments: Tensor


def _places(batch: PackedBatch, rows: Unit) -> _Places:
    import torch

    starts, ends = batch.cu_seqlens[:-1].long(), batch.cu_seqlens[1:].long()
    real = real_segments(batch)
    counted = real.cumsum(0)
    if rows == "segments":
        row_of = (counted - 1).clamp(min=0)  # of filler any row: its tokens are not kept
        row_starts = starts[real]
        padded = batch.segment_lengths is not None
        row_ends = (starts + batch.segment_lengths)[real] if padded else ends[real]
        first = torch.arange(len(row_starts), device=starts.device)
    else:
        bounds = batch.pack_boundaries
        if bounds is None:
            bounds = batch.cu_seqlens[[0, -1]]
        row_starts = bounds[:-1].long()
        row_of = torch.searchsorted(bounds[1:].long(), starts, right=True)
        real &= row_of < len(row_starts)
        row_of = row_of.clamp(max=len(row_starts) - 1)
        row_ends = row_starts.scatter_reduce(0, row_of, torch.where(real, ends, 0), "amax")
        first = torch.zeros_like(row_starts).scatter_add(0, row_of, real.long()).cumsum(0).roll(1)
        first[0] = 0
    segment = torch.repeat_interleave(ends - starts, output_size=len(batch))
    numbers = ((counted - first[row_of]) * real)[segment]
    row, token = row_of[segment], torch.arange(len(batch), device=starts.device)
    kept = (token < row_ends[row]) & (real[segment] if rows == "segments" else token >= 0)
    segments = torch.zeros_like(row_starts).scatter_add(0, row_of, real.long())
    return _Places(
        token[kept],
        row[kept],
        (token - row_starts[row])[kept],
        numbers,
        row_ends - row_starts,
        segments,
    )
