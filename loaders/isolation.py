"""A test that a model keeps the documents of a pack apart, by measuring its logits.

It runs the model on the pack and on each document alone, and compares logits. If they differ, a
token saw another document, or had another position. The usual reason is a missing argument, or one
too many, and no library reports it. Run the test once on a small batch before a long training, with
the attention implementation and the arguments of that training.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .adapters import to_hf, to_hf_4d
from .batch import PackedBatch, Tensor
from .call_documents import CallDocuments, documents_of_batch, documents_of_call, is_padded
from .rows import batch_from_rows

# Isolated models reached 1e-6 in float32, 8e-3 in bfloat16 and 1e-3 in float16; the smallest known
# leak is 4e-4.
_TOLERANCE, _TOLERANCE_OF_SHORT_FLOATS = 1e-4, 0.05


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """Result of verify_isolation.

    largest: the largest difference of a logit; inf if a logit is NaN.
    leaking: the same in a call without boundaries.
    tolerance: the share of `leaking` that counts as equal.
    segment: the segment with the largest difference, None if all logits are equal.
    cause: the likely reason in a sentence, None if all differences are within tolerance.
    hazards: arguments of the call that lose boundaries, or time, with some attention or model, even
    if not with this one.
    """

    largest: float
    leaking: float
    tolerance: float
    segment: int | None
    cause: str | None
    hazards: tuple[str, ...]

    @property
    def isolated(self) -> bool:
        return self.cause is None

    def __str__(self) -> str:
        without = f"{self.leaking:.1e} without boundaries"
        if self.isolated:
            hazard = f"; but {self.hazards[0]}" if self.hazards else ""
            return f"isolated: logits differ by {self.largest:.1e} at most, by {without}{hazard}"
        return (
            f"leak: logits of segment {self.segment} differ by {self.largest:.1e}, by "
            f"{without}; {self.cause}"
        )


def verify_isolation(
    model: Any,
    batch: PackedBatch | Mapping[str, object],
    *,
    inputs: Callable[[Any], Mapping[str, object]] | None = None,
    tolerance: float | None = None,
) -> Isolation:
    """Compare the model's logits on the packed batch with those on each of its documents alone.

    model: a causal LM that returns logits [B, T, vocabulary], or an output with .logits. batch: a
    PackedBatch, or a dict that a trainer passes to the model, from its own dataloader; its
    documents are read from cu_seq_lens_q, seq_idx, position_ids, segment_ids and numbers or a 4-D
    mask in attention_mask, wherever one of them begins a document. inputs: the adapter that you
    train with, called as `model(**inputs(batch))`; by default to_hf for a PackedBatch, and
    none for a dict. tolerance: difference that counts as equal, as a share of the
    difference in a call without boundaries; by default 1e-4, or 0.05 if the model computes in
    bfloat16, float16 or TF32. Rounding in short floats can hide a weak leak, so use float32 if you
    can.

    Runs without gradients, in evaluation mode (dropout is random): a forward pass for each document
    and two for the pack. Documents that end in padding are compared as a whole. Filler is not
    compared; in a dict, filler is a segment without labels. ValueError for a batch without
    boundaries, or with no document that has another before it.
    """
    batch = batch.torch() if isinstance(batch, PackedBatch) else batch
    if inputs is not None:
        call = dict(inputs(batch))
    elif isinstance(batch, PackedBatch):
        call = to_hf(batch, sides="both")  # labels are not needed
    else:
        call = dict(batch)
    documents = (
        documents_of_batch(batch)
        if isinstance(batch, PackedBatch) and not is_padded(call, batch)
        else documents_of_call(call)
    )
    call.pop("labels", None)
    with _evaluating(model):
        with _Precision(model) as precision:
            packed = _logits(model, call, len(documents.tokens))
        unbounded = _plain(model, call, documents.tokens.reshape(-1, documents.width))
        largest, leaking, segment = 0.0, 0.0, None
        for number, (start, end) in enumerate(pairwise(documents.bounds)):
            if documents.compared[number]:
                alone = _plain(model, call, documents.tokens[None, start:end])
                leak, difference = (
                    _difference(unbounded[start:end], alone),
                    _difference(packed[start:end], alone),
                )
                leaking = max(leaking, 0.0 if leak == float("inf") else leak)
                if difference > largest:
                    largest, segment = difference, number
        if tolerance is None:
            tolerance = _TOLERANCE_OF_SHORT_FLOATS if precision.short else _TOLERANCE
        hazards = tuple(_hazards(documents, call, model))
        cause = None
        if segment is not None and largest > tolerance * leaking:
            cause = next(iter(hazards), None) or _advice(
                model, call, documents, segment, tolerance * leaking
            )
    return Isolation(
        largest=largest,
        leaking=leaking,
        tolerance=tolerance,
        segment=segment,
        cause=cause,
        hazards=hazards,
    )


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Evaluation mode, without gradients; afterwards the model is in the mode it was in."""
    import torch

    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def _logits(model: Any, call: Mapping[str, object], tokens: int) -> Any:
    """Logits of the call, [tokens, vocabulary]."""
    output = model(**call)
    logits = output.logits if hasattr(output, "logits") else output
    logits = logits.reshape(-1, logits.shape[-1])
    if len(logits) != tokens:
        raise ValueError(
            f"the model returned {len(logits)} logits for {tokens} tokens; expected one per token"
        )
    return logits


def _plain(model: Any, call: Mapping[str, object], rows: Any) -> Any:
    """Logits of rows of tokens, in a call with no argument that could leak or be lost."""
    name = "input_ids" if "input_ids" in call else next(iter(call))
    no_cache = {"use_cache": False} if "use_cache" in call or hasattr(model, "config") else {}
    return _logits(model, {name: rows} | no_cache, rows.numel())


def _difference(logits: Any, others: Any) -> float:
    """Largest difference of a logit; inf for a NaN, which is in rows that no kernel wrote."""
    difference = (logits.float() - others.float()).abs().max()
    return float("inf") if bool(difference.isnan()) else float(difference)


class _Precision:
    """Context that sets `short` if a module of the model returns bfloat16 or float16.

    This sees autocast too.
    """

    def __init__(self, model: Any) -> None:
        import torch

        self._modules, self._hooks = model.modules(), list[Any]()
        self._short_types = (torch.bfloat16, torch.float16)
        self.short = torch.get_float32_matmul_precision() != "highest"

    def __enter__(self) -> "_Precision":
        self._hooks = [module.register_forward_hook(self._note) for module in self._modules]
        return self

    def _note(self, _module: Any, _arguments: Any, output: Any) -> None:
        self.short = self.short or getattr(output, "dtype", None) in self._short_types

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()


def _advice(
    model: Any, call: Mapping[str, object], documents: CallDocuments, segment: int, limit: float
) -> str:
    """Likely cause and fix if the arguments of the call are right; tries a 4-D mask."""
    if _isolated_by_mask(model, call, documents, segment, limit):
        return (
            "the model does not pass position_ids to its attention mask; call it with "
            "to_hf_4d(batch, model.config), or use flash-attention"
        )
    if "seq_idx" not in call:
        return (
            "attention or another layer mixes tokens across boundaries; pass seq_idx to "
            "state-space and convolution layers, as to_hf does, and install the kernels that read "
            "it (causal_conv1d, mamba_ssm)"
        )
    return (
        "attention or another layer mixes tokens across boundaries and ignores seq_idx; do not "
        "train this model on packs; docs/isolation.md lists models"
    )


def _isolated_by_mask(
    model: Any, call: Mapping[str, object], documents: CallDocuments, segment: int, limit: float
) -> bool:
    if call.get("attention_mask") is not None or not hasattr(model, "config") or _is_flash(model):
        return False
    bounds, device = documents.bounds, documents.tokens.device
    row = {"tokens": documents.tokens.cpu().numpy(), "cu_seqlens": bounds}
    dtype = next(model.parameters()).dtype
    masked = to_hf_4d(batch_from_rows([row]).to(device), model.config, dtype=dtype)
    del masked["labels"]
    start, end = bounds[segment : segment + 2]
    try:
        logits = _logits(model, masked, len(documents.tokens))
    except Exception:  # a model may reject a mask with any error
        return False
    return (
        _difference(logits[start:end], _plain(model, call, documents.tokens[None, start:end]))
        <= limit
    )


def _is_flash(model: Any) -> bool:
    return "flash" in str(getattr(getattr(model, "config", None), "_attn_implementation", ""))


def _hazards(documents: CallDocuments, call: Mapping[str, object], model: Any) -> Iterator[str]:
    """Arguments of this call that lose boundaries in transformers, the most harmful first."""
    import torch

    boundaries: Tensor = call.get("cu_seq_lens_q")
    positions: Tensor = call.get("position_ids")
    mask = call.get("attention_mask")
    segments = len(documents.bounds) - 1
    if isinstance(mask, torch.Tensor) and mask.dim() == 2 and bool((mask > 1).any()):
        yield (
            "attention_mask numbers the segments, and models read it as 1 and 0 unless their "
            "attention is patched; pass to_padded(mask='segments'), whose numbers are segment_ids, "
            "or mask='4d'"
        )
    elif isinstance(mask, torch.Tensor) and mask.dim() == 2:
        yield (
            "the call has an attention_mask, which makes transformers ignore packed boundaries, "
            "whatever the other arguments are; leave it out"
        )
    if positions is None:
        yield (
            "position_ids are missing, so positions continue across documents; pass those of the "
            "batch"
        )
    else:
        flat = positions.reshape(-1)[-len(documents.tokens) :].cpu()
        if (
            flat
            != torch.cat([torch.arange(end - start) for start, end in pairwise(documents.bounds)])
        ).any():
            if first := int(flat[0]):
                yield (
                    f"position_ids start at {first} and not at 0, which hides the first segment; "
                    "number each segment from 0"
                )
            else:
                yield (
                    f"position_ids make {int((flat == 0).sum())} segments and cu_seqlens "
                    f"{segments}; number each segment, padding too, from 0"
                )
    if (
        call.get("use_cache", getattr(getattr(model, "config", None), "use_cache", None))
        and mask is None
    ):
        yield (
            "use_cache is on, and with a cache transformers ignores boundaries; pass "
            "use_cache=False"
        )
    if boundaries is None:
        if _is_flash(model):
            yield (
                "cu_seq_lens_q and _k are missing; pass them, and max_length_q and _k, as to_hf "
                "does"
            )
    elif boundaries.unique_consecutive().tolist() != documents.bounds:
        yield (
            f"cu_seq_lens_q make {len(boundaries) - 1} segments and the batch has {segments}; "
            "pass the boundaries of the batch"
        )
