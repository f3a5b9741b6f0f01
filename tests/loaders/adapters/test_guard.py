"""The guard raises exactly where a call joins documents, measured by logits."""

import copy
import pickle
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.helpers.torch_models import VOCABULARY, FlashStub, skip_without, tiny_llama

skip_without("torch", "transformers")

import torch  # noqa: E402

from packprep.loaders import batch_from_rows, guard, to_hf, to_hf_4d  # noqa: E402
from packprep.loaders.adapters.guard import _Guard  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts" / "checks"))

import families  # noqa: E402

LENGTHS = [9, 1, 14, 8]
TOTAL = sum(LENGTHS)
BOUNDARIES = [0, 9, 10, 24, 32]
PADS = 3  # tokens at the end that a mask hides


class Call(NamedTuple):
    """A way to call a model with packs.

    `lengths` is "all", "some" or "none" of the arguments of flash-attention.
    """

    mask: str
    cache: str
    positions: bool
    lengths: str
    rows: int


CALLS = [
    Call(*choice)
    for choice in product(
        ("none", "ones", "pads", "4-D"),
        ("off", "on", "of the config", "given", "on, checkpointing"),
        (True, False),
        ("all", "some", "none"),
        (1, 2),
    )
]


def tokens_of(rows: int) -> Any:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, VOCABULARY, (2, TOTAL), generator=generator)[:rows]


def arguments(model: Any, call: Call) -> dict[str, Any]:
    from transformers import DynamicCache

    tokens = tokens_of(call.rows)
    fields: dict[str, Any] = {"input_ids": tokens}
    if call.positions:
        each = torch.cat([torch.arange(length) for length in LENGTHS])
        fields["position_ids"] = each[None].repeat(call.rows, 1)
    if call.lengths != "none":
        ends = [row * TOTAL + end for row in range(call.rows) for end in BOUNDARIES[1:]]
        fields |= dict.fromkeys(
            ("cu_seq_lens_q", "cu_seq_lens_k"), torch.tensor([0, *ends], dtype=torch.int32)
        )
    if call.lengths == "all":
        fields |= {"max_length_q": max(LENGTHS), "max_length_k": max(LENGTHS)}
    if call.mask in ("ones", "pads"):
        fields["attention_mask"] = torch.ones_like(tokens)
        if call.mask == "pads":
            fields["attention_mask"][:, -PADS:] = 0
    if call.mask == "4-D":
        pack = {"tokens": tokens[0].tolist(), "cu_seqlens": BOUNDARIES}
        mask = to_hf_4d(batch_from_rows([pack]), model.config)["attention_mask"]
        fields["attention_mask"] = mask.repeat(call.rows, 1, 1, 1)
    if call.cache != "of the config":
        fields["use_cache"] = call.cache.startswith("on")
    if call.cache == "given":
        fields["past_key_values"] = DynamicCache(config=model.config)
    return fields


def models_of(attention: str, monkeypatch: pytest.MonkeyPatch) -> dict[bool, Any]:
    """Two models in training: without and with gradient checkpointing."""
    stub = FlashStub(monkeypatch) if attention == "flash" else None
    models = {
        checkpointing: (tiny_llama(attention) if stub is None else stub.model()).train()
        for checkpointing in (False, True)
    }
    models[True].gradient_checkpointing_enable()
    return models


@cache
def alone() -> list[tuple[int, int, Any]]:
    """Row, first token and logits of each document, from a call of its own."""
    model, tokens = tiny_llama(), tokens_of(2)
    with torch.no_grad():
        return [
            (row, start, model(input_ids=tokens[row : row + 1, start:end]).logits[0])
            for row, (start, end) in product(range(2), pairwise(BOUNDARIES))
        ]


def leak(model: Any, call: Call) -> float:
    """Largest difference of a logit between the call and each document alone."""
    packed = model(**arguments(model, call)).logits.detach()
    seen = TOTAL - (PADS if call.mask == "pads" else 0)
    return max(
        float((packed[row, start : start + len(logits)] - logits)[: seen - start].abs().max())
        for row, start, logits in alone()
        if row < call.rows
    )


def refusal(call: Callable[[], Any]) -> str:
    """The sentence of a guard in a call; empty if it is silent."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


def judged(model: Any, call: Call) -> str:
    """The sentence of a guard for a call of this model, which has none and does not run."""
    inner, fields = model.model, arguments(model, call)
    return refusal(lambda: _Guard(inner, allow_unpacked=False)(inner, (), fields))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attention", ["sdpa", "eager", "flash"])
def test_the_guard_raises_in_the_calls_that_leak_and_in_no_other(
    attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, models = set(), models_of(attention, monkeypatch)
    for call in CALLS:
        if attention == "flash" and call.mask == "4-D":
            continue  # no kernel takes such a mask
        told = call.positions or call.lengths != "none" or call.mask == "4-D"
        model = models["checkpointing" in call.cache]
        leaks = leak(model, call) > 0.01
        said = judged(model, call)
        assert bool(said) == (leaks or not told), (call, leaks, said)
        seen.add((leaks, told))
    assert seen >= {(True, True), (False, True), (True, False)}


PACK = {"tokens": tokens_of(1)[0].tolist(), "cu_seqlens": BOUNDARIES}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"attention_mask": torch.ones(1, TOTAL)}, "has a 2-D attention_mask .*data_collator=to_hf"),
    ({"use_cache": True}, "has a cache and position_ids that .*model.config.use_cache = False"),
    ({"position_ids": None}, "has cu_seq_lens_q and no position_ids, and .*data_collator=to_hf"),
    (
        {"position_ids": None, "cu_seq_lens_q": None},
        "has neither position_ids nor cu_seq_lens_q.*padding_free=True and max_length=None",
    ),
]


def test_the_sentences_of_flash_attention_name_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = FlashStub(monkeypatch).model().train()
    fields = to_hf([PACK]) | {"position_ids": None, "max_length_q": None}
    said = refusal(lambda: guard(model)(**fields))
    assert "has cu_seq_lens_q without max_length_q, and flash_attention_2 needs all" in said
    said = judged(model, Call("none", "off", True, "none", 2))
    assert "has 2 rows and position_ids that restart, and flash_attention_2 reads" in said
    assert "Pass cu_seq_lens_q" in said


def padded(**fields: Any) -> dict[str, Any]:
    """Two rows of one document each, the second padded on the left."""
    mask = torch.tensor([[1] * 6, [0] * 2 + [1] * 4])
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)  # as transformers' generate does
    made = {"input_ids": tokens_of(2)[:, :6], "attention_mask": mask, "position_ids": positions}
    return made | fields


FULL = torch.ones(2, 6)
ON_THE_RIGHT = {
    "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2]),
    "position_ids": torch.tensor([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 0, 0]]),
}
LEFT_OUT = torch.tensor([[0, 1, 2, 40, 41, 42]])
ONE_TOKEN = {"input_ids": torch.tensor([[5]]), "position_ids": torch.tensor([[0]])}
ONE_DOCUMENT = {
    "padding on the left": padded(),
    "padding on the right": padded(**ON_THE_RIGHT),
    "a cache": padded(use_cache=True),
    "positions of one row for all": padded(attention_mask=FULL, position_ids=torch.arange(6)[None]),
    "positions that leave some out": padded(attention_mask=FULL, position_ids=LEFT_OUT),
    "one token": ONE_TOKEN | {"attention_mask": torch.ones(1, 1)},
}


@pytest.mark.parametrize("name", ONE_DOCUMENT)
def test_rows_of_one_document_pass(name: str) -> None:
    assert guard(tiny_llama().train())(**ONE_DOCUMENT[name]).logits.isfinite().all()


def test_padded_rows_without_positions_pass_if_they_are_allowed() -> None:
    model = tiny_llama().train()
    fields = padded(position_ids=None)
    assert guard(model, allow_unpacked=True) is model
    model(**fields)
    with pytest.raises(ValueError, match="has a 2-D attention_mask and position_ids that restart"):
        model(**to_hf([PACK]), attention_mask=torch.ones(1, TOTAL))
    guard(model)  # again: as strict as before
    with pytest.raises(ValueError, match="has neither position_ids nor cu_seq_lens_q"):
        model(**fields)
    assert len(model.model._forward_pre_hooks) == 1


def test_calls_that_do_not_train_pass_and_packs_with_gradients_are_guarded_in_evaluation() -> None:
    """As in DPO, where dropout is off in policy and reference."""
    model = guard(tiny_llama().train())
    with torch.no_grad():
        model(input_ids=tokens_of(1), use_cache=True)
    model.eval()(input_ids=tokens_of(1), use_cache=True)
    model.generate(input_ids=tokens_of(1), max_new_tokens=2, do_sample=False, pad_token_id=0)
    with pytest.raises(ValueError, match="has a cache and position_ids that restart"):
        model(**to_hf([PACK]) | {"use_cache": True})


def test_a_guarded_model_is_copied_and_pickled_with_its_guard() -> None:
    model = guard(tiny_llama().train())
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.raises(ValueError, match="has neither position_ids"):
            again(input_ids=tokens_of(1))


class Tuner(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """As PEFT calls a model: `forward`, which runs no hook of the model itself."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model.forward(*args, **kwargs)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "a module that calls forward": Tuner,
    "torch.compile": lambda model: torch.compile(model, backend="eager"),
    "DataParallel": torch.nn.DataParallel,
}


@pytest.mark.filterwarnings("ignore")  # of torch.compile's own making
@pytest.mark.parametrize("guard_first", [True, False])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if "torch" in n else ()) for n in WRAPPERS]
)
def test_a_wrapped_model_is_guarded_before_and_after_it_is_wrapped(
    name: str, guard_first: bool
) -> None:
    wrap, model = WRAPPERS[name], tiny_llama().train()
    wrapped = wrap(guard(model)) if guard_first else guard(wrap(model))
    assert wrapped(**to_hf([PACK])).loss.isfinite()
    for changes, words in REFUSED:
        with pytest.raises(ValueError, match=f"^a training call of LlamaModel {words}"):
            wrapped(**to_hf([PACK]) | changes)


def test_a_sound_call_reads_no_value_of_a_tensor() -> None:
    """So it never waits for a GPU: a tensor on the meta device has no values to read."""
    model = guard(tiny_llama().train().to("meta"))
    fields = {
        name: value.to("meta") if isinstance(value, torch.Tensor) else value
        for name, value in to_hf([PACK]).items()
    }
    (hook,) = model.model._forward_pre_hooks.values()
    hook(model.model, (), fields)
    with pytest.raises((RuntimeError, NotImplementedError)):
        hook(model.model, (), fields | {"use_cache": True})


def test_something_without_a_transformers_model_is_refused() -> None:
    for thing in (torch.nn.Linear(2, 2), SimpleNamespace()):
        with pytest.raises(ValueError, match=r"guard got a .* with no transformers model inside"):
            guard(thing)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "phi", "gemma2", "opt"])
def test_decoders_that_take_arguments_by_place_are_read_too(family: str) -> None:
    model = guard(families.tiny_model(family, "eager").train())
    assert model(**to_hf([PACK])).loss.isfinite()
    with pytest.raises(ValueError, match="has a 2-D attention_mask and position_ids that restart"):
        model(**to_hf([PACK]) | {"attention_mask": torch.ones(1, TOTAL)})
    with pytest.raises(ValueError, match="has neither position_ids nor cu_seq_lens_q"):
        model(input_ids=tokens_of(1))


def test_flex_attention_is_judged_as_sdpa_is() -> None:
    """Both read the same masks; the kernel of flex has no backward pass on a CPU."""
    models = [tiny_llama().train(), tiny_llama().train()]
    models[1].config._attn_implementation_internal = "flex_attention"
    for call in CALLS:
        sdpa, flex = (judged(model, call) for model in models)
        assert sdpa.replace("sdpa", "flex_attention") == flex, call
