"""verify_isolation: does this model, called this way, keep the documents of a pack apart? Measured, not assumed.

Runs the model on the pack and on each segment alone, and compares logits. If they differ, some token saw another
document, or had another position: usually an argument that is missing or one too many, and no library says so. Run it
once on a small batch before a long training, with the attention implementation and the arguments that will be used.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .adapters import to_hf
from .batch import PackedBatch


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """What verify_isolation found.

    largest: the largest difference of a logit; inf where one is NaN. segment: where that is, None if there is none.
    cause: the likely reason in a sentence, None if largest is within tolerance. hazards: everything about the call that
    is known to lose boundaries, or time, with some attention or model, even if not with this one.
    """

    largest: float
    tolerance: float
    segment: int | None
    cause: str | None
    hazards: tuple[str, ...]

    @property
    def isolated(self) -> bool:
        return self.cause is None

    def __str__(self) -> str:
        if self.isolated:
            but = f"; but {self.hazards[0]}" if self.hazards else ""
            return f"isolated: logits differ by {self.largest:.1e} at most, within {self.tolerance:.0e}{but}"
        return f"leak: logits of segment {self.segment} differ by {self.largest:.1e}; {self.cause}"


def verify_isolation(
    model: Any,
    batch: PackedBatch,
    *,
    inputs: Callable[[PackedBatch], Mapping[str, Any]] = to_hf,
    tolerance: float = 1e-4,
) -> Isolation:
    """Compare the model's logits on the packed batch with those on each of its segments alone.

    model: a causal LM whose output has .logits [1, T, vocabulary], or is that. inputs: how you call it, as in
    `model(**inputs(batch))`; the adapter that you train with. tolerance: what counts as equal; 1e-4 suits float32, 0.05
    bfloat16. Runs without gradients, in evaluation mode (dropout differs by chance), one forward pass per segment.
    Segments that end in padding are compared whole.
    """
    import torch

    batch = batch.torch()
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            given = {name: value for name, value in inputs(batch).items() if name != "labels"}
            packed = _logits(model(**given))
            if packed.shape[1] != len(batch):
                raise ValueError(f"the model gave {packed.shape[1]} logits for {len(batch)} tokens; expected one each")
            # Alone, and called with as little as can be: nothing that could leak or be lost.
            names = "input_ids" if "input_ids" in given else next(iter(given))
            worst, where = 0.0, None
            for segment, (start, end) in enumerate(pairwise(batch.cu_seqlens.tolist())):
                if start == end:
                    continue
                alone = _logits(model(**{names: batch.tokens[None, start:end]}, **_no_cache(given, model)))
                difference = (packed[:, start:end].float() - alone.float()).abs().max()
                # A NaN is a difference too: rows that no kernel wrote.
                size = float("inf") if bool(difference.isnan()) else float(difference)
                if size > worst:
                    worst, where = size, segment
    finally:
        model.train(training)
    hazards = tuple(_hazards(batch, given, model))
    cause = None if worst <= tolerance else next(iter(hazards), _ELSEWHERE)
    return Isolation(largest=worst, tolerance=tolerance, segment=where, cause=cause, hazards=hazards)


def _logits(output: Any) -> Any:
    return output.logits if hasattr(output, "logits") else output


def _no_cache(given: Mapping[str, Any], model: Any) -> dict[str, Any]:
    return {"use_cache": False} if "use_cache" in given or hasattr(model, "config") else {}


_ELSEWHERE = (
    "attention or another layer mixes tokens across boundaries; compare with attn_implementation='sdpa', and give "
    "seq_idx to state-space layers"
)


def _hazards(batch: PackedBatch, given: Mapping[str, Any], model: Any) -> Iterator[str]:
    """What is known to make transformers lose boundaries, of all that this call does; the most harmful first."""
    boundaries = given.get("cu_seq_lens_q")
    positions = given.get("position_ids")
    mask = given.get("attention_mask")
    config = getattr(model, "config", None)
    flash = "flash" in str(getattr(config, "_attn_implementation", ""))
    if mask is not None and mask.dim() == 2:
        yield (
            "an attention_mask is given, and it makes transformers ignore packed boundaries, whatever else is given; "
            "leave it out"
        )
    if positions is None:
        yield "position_ids are missing, so positions run on across documents; give those of the batch"
    elif (positions[0] != batch.position_ids.to(positions.device)).any():
        if at := int(positions[0, 0]):
            yield f"position_ids start at {at} and not at 0, which hides the first segment; number each segment from 0"
        else:
            starts = int((positions[0] == 0).sum())
            yield (
                f"position_ids make {starts} segments and cu_seqlens {batch.num_segments}; number each segment, "
                "padding too, from 0"
            )
    cache = given.get("use_cache", getattr(config, "use_cache", None))
    if cache and mask is None:
        yield "use_cache is on, and with a cache transformers does not look for boundaries; pass use_cache=False"
    if boundaries is None:
        if flash:
            yield "cu_seq_lens_q and _k are missing; give them, and max_length_q and _k, as to_hf does"
    elif boundaries.tolist() != batch.cu_seqlens.tolist():
        yield f"cu_seq_lens_q make {len(boundaries) - 1} segments and the batch has {batch.num_segments}; give its own"
