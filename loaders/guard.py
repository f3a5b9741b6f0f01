"""A guard on a transformers model: a training call that would join documents raises.

transformers reports no error when documents of a pack see each other. When they do follows from the
arguments of the call, and from the kind of attention:

    eager, sdpa, flex    position_ids keep documents apart, in any number of rows. With a 2-D
                         attention_mask, even of ones, or with a cache, they are not read
    flash-attention      cu_seq_lens_q, cu_seq_lens_k, max_length_q and max_length_k do, or
                         position_ids in a batch of one row. A mask that hides a token beats both

A mask with four dimensions, a block mask or a dict of masks is taken as it is: the code
that makes one means the boundaries to be in it.

The hook is on the decoder and not on the model: PEFT, torch.compile, DistributedDataParallel,
accelerate and the losses of TRL all call the decoder, and some call no other module. A model that
makes its masks in a module around the decoder has a hook there too. A hook reads
shapes and names, so a sound call never waits for a GPU. Values of position_ids, and of the mask,
are read only in a call that has a mask or a cache, or several rows in flash-attention, and in the
first calls without cu_seq_lens_q: one wait.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from .batch import Tensor

_FIRST_CALLS = 8
_FLASH = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
_OURS = "use data_collator=to_hf with remove_unused_columns=False"
_MASKED = (
    "has a 2-D attention_mask and position_ids that restart; with the mask, transformers ignores "
    f"where documents begin, and they see each other. Leave the mask out: {_OURS} "
    "(DataCollatorForSeq2Seq and DataCollatorForLanguageModeling add a mask, and so does a Trainer "
    "with a processing_class and without a data_collator)"
)
_CACHED = (
    "has a cache and position_ids that restart; with a cache, transformers ignores where documents "
    "begin, and they see each other. Pass use_cache=False, as to_hf does, or set "
    "model.config.use_cache = False"
)
_UNREAD_LENGTHS = (
    "has cu_seq_lens_q and no position_ids, and {attention} attention does not read cu_seq_lens_q, "
    f"so documents see each other. Pass the position_ids of the batch: {_OURS}"
)
_FEW_LENGTHS = (
    "has cu_seq_lens_q without {missing}, and {attention} needs all of these, so documents see "
    f"each other. Pass them: {_OURS}"
)
_ROWS = (
    "has {rows} rows and position_ids that restart, and {attention} reads position_ids in a batch "
    "of one row only, so documents see each other. Pass cu_seq_lens_q, cu_seq_lens_k, max_length_q "
    f"and max_length_k, or one row: {_OURS}"
)
_JOINED = (
    "is the {calls}th, and all had one document in each row; so boundaries seem to be lost before "
    "the call, as with DataCollatorWithFlattening and TRL's packing=True, which number a pack as "
    f"one document: {_OURS}. For packs of one document each: guard(model, allow_unpacked=True)"
)
_UNPACKED = (
    "has neither position_ids nor cu_seq_lens_q, so nothing says where the documents of a pack "
    f"begin: {_OURS}, or TRL's collator with padding_free=True and max_length=None. TRL's defaults "
    "and collators that pad drop both. For rows that are not packed: guard(model, "
    "allow_unpacked=True)"
)


def guard(model: Any, *, allow_unpacked: bool = False) -> Any:
    """Make training calls of a transformers model raise if documents of a pack see each other.

    Returns the same model: `Trainer(guard(model), ...)`, or `guard(model)` before a loop.

    A call with gradients raises ValueError if (a) its position_ids restart, or its cu_seq_lens_q
    divide a row, and a 2-D attention_mask, a cache or the attention of the model ignores that; or
    if (b) the model is in training mode and the call has neither position_ids nor cu_seq_lens_q.
    allow_unpacked: True permits (b), for a model that also trains on rows of one document. The
    message names the argument and the collator or setting to use. Calls whose positions show one
    document in each row pass, and so do all calls without gradients.

    A Trainer can also lose boundaries before the call: DataCollatorWithFlattening and TRL's
    packing=True number a pack as one document. So if each of the first 8 calls has one document in
    every row, the 8th raises too, unless allow_unpacked.

    model: a model of transformers, or a module that has one inside, as PEFT, torch.compile and
    DistributedDataParallel make. ValueError if there is none. Guard a model again to change
    allow_unpacked. The guard reads the arguments, so it does not see a model that ignores
    position_ids, such as gpt_oss or mamba: `verify_isolation` does.
    """
    for decoder in _decoders(model):
        hooks = decoder._forward_pre_hooks.values()
        known = [hook for hook in hooks if isinstance(hook, _Guard)]
        for hook in known:
            hook.allow_unpacked = allow_unpacked
        if not known:
            decoder.register_forward_pre_hook(_Guard(decoder, allow_unpacked), with_kwargs=True)
    return model


def _decoders(model: Any) -> list[Any]:
    """The modules under the head of the outermost transformers model that are called with a batch.

    One in most families. OPT's head calls the second; a model of images makes masks in the first.
    """
    from transformers import PreTrainedModel

    for module in model.modules() if hasattr(model, "modules") else ():
        if isinstance(module, PreTrainedModel):
            base, decoder = module.base_model, module.get_decoder()
            return [base] if decoder is None or decoder is base else [base, decoder]
    raise ValueError(
        f"guard got a {type(model).__name__} with no transformers model inside; give it a model of "
        "transformers. For a model of your own, run verify_isolation before training"
    )


class _Guard:
    """The hook of a decoder. It can be pickled and copied with its model."""

    def __init__(self, decoder: Any, allow_unpacked: bool) -> None:
        self.allow_unpacked = allow_unpacked
        self._names = [*inspect.signature(decoder.forward).parameters]
        self._calls = 0  # with one document in each row, before the first with several

    def __call__(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
        import torch

        if not torch.is_grad_enabled():
            return
        call = {**dict(zip(self._names, args, strict=False)), **kwargs}
        unpacked = self.allow_unpacked or not decoder.training
        fault = _fault(decoder, call, unpacked)
        if fault is None and not unpacked and not torch.compiler.is_compiling():
            fault = self._joined(call)
        if fault is not None:
            raise ValueError(f"a training call of {type(decoder).__name__} {fault}")

    def _joined(self, call: Mapping[str, object]) -> str | None:
        """The fault of the last of the first calls if documents arrived in none of them."""
        if self._calls >= _FIRST_CALLS or call.get("attention_mask") is not None:
            return None
        lengths = call.get("cu_seq_lens_q")
        positions = call.get("position_ids") if lengths is None else None
        several = _several_documents(positions, lengths, None, _rows(call))
        self._calls = _FIRST_CALLS if several else self._calls + 1
        if several or self._calls < _FIRST_CALLS:
            return None
        return _JOINED.format(calls=_FIRST_CALLS)


def _fault(decoder: Any, call: Mapping[str, object], allow_unpacked: bool) -> str | None:
    """The rest of the sentence that says how this call joins documents; None if it does not."""
    import torch

    mask, positions = call.get("attention_mask"), call.get("position_ids")
    lengths = call.get("cu_seq_lens_q")
    if mask is not None and not (isinstance(mask, torch.Tensor) and mask.dim() == 2):
        return None
    if positions is None and lengths is None:
        return None if allow_unpacked else _UNPACKED
    config = decoder.config.get_text_config()
    attention = str(config._attn_implementation)
    rows = _rows(call)
    fault: str | None
    if "flash" in attention:
        if mask is not None and not bool(mask.all()):
            fault = _MASKED
        else:
            fault = _fault_of_flash(call, attention, rows)
    elif attention not in ("eager", "sdpa", "flex_attention"):
        return None  # an attention of the user's own, which is given all arguments
    elif mask is not None:
        fault = _MASKED
    elif _has_cache(decoder, config, call):
        fault = _CACHED
    else:
        fault = _UNREAD_LENGTHS.format(attention=attention) if positions is None else None
    if fault is None or not _several_documents(positions, lengths, mask, rows):
        return None
    return fault


def _rows(call: Mapping[str, object]) -> int:
    """Rows of a call."""
    tokens: Tensor = call.get("input_ids")
    return len(call["inputs_embeds"] if tokens is None else tokens)  # type: ignore[arg-type]


def _fault_of_flash(call: Mapping[str, object], attention: str, rows: int) -> str | None:
    """The fault that a call without mask has if it holds several documents."""
    missing = [name for name in _FLASH if call.get(name) is None]
    if not missing:
        return None
    if call.get("position_ids") is None:
        return _FEW_LENGTHS.format(missing=", ".join(missing), attention=attention)
    return _ROWS.format(rows=rows, attention=attention) if rows > 1 else None


def _has_cache(decoder: Any, config: Any, call: Mapping[str, object]) -> bool:
    """True if the decoder makes its mask with a cache; gradient checkpointing makes none."""
    if call.get("past_key_values") is not None:
        return True
    asked = call.get("use_cache")
    asked = getattr(config, "use_cache", False) if asked is None else asked
    return bool(asked) and not getattr(decoder, "gradient_checkpointing", False)


def _several_documents(positions: Any, lengths: Any, mask: Any, rows: int) -> bool:
    """True if some row holds several documents. Reads values: a GPU is waited for.

    positions: int [rows, T] or [1, T], or with several dimensions of positions [4, rows, T], of
    which the first counts tokens. mask: int [rows, T], 0 on padding, whose positions mean nothing.
    """
    if positions is None:
        return len(lengths) - 1 > rows
    if positions.dim() == 3:
        if len(positions) != 4:
            return False  # places in images: no count of tokens among them
        positions = positions[0]
    restarts = positions[:, 1:] <= positions[:, :-1]
    if mask is not None:
        seen = mask[:, -positions.shape[1] :].bool()
        restarts = restarts & seen[:, 1:] & seen[:, :-1]
    return bool(restarts.any())
