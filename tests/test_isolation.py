"""Documents stay apart in a model, and a call that joins them is found or stopped."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.torch_models import documents, skip_without, tiny_llama

skip_without("torch", "transformers")

import torch  # noqa: E402

from packprep.loaders import (  # noqa: E402
    PackedBatch,
    batch_from_rows,
    guard,
    to_axolotl,
    to_hf,
    to_hf_4d,
    to_padded,
    verify_isolation,
)

LENGTHS = [9, 1, 14, 8]


def batch_of(*lengths: int) -> PackedBatch:
    ids = [token for document in documents(lengths) for token in document]
    return batch_from_rows([{"input_ids": ids, "seq_lengths": [*lengths]}]).torch()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_sound_calls_keep_documents_apart(attention: str) -> None:
    model, batch = tiny_llama(attention), batch_of(*LENGTHS)
    calls: list[Any] = [
        batch,
        to_axolotl(batch),
        to_hf_4d(batch, model.config),
        to_padded(batch, mask="4d"),
    ]
    for call in calls:
        found = verify_isolation(model, call)
        assert found.isolated, str(found)
        assert found.largest < 1e-3 < found.leaking


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (
            {"attention_mask": torch.ones(1, sum(LENGTHS), dtype=torch.long)},
            "has an attention_mask",
        ),
        ({"use_cache": True}, "use_cache is on"),
        ({"position_ids": torch.arange(sum(LENGTHS))[None]}, "position_ids make 1 segments"),
    ],
)
def test_a_leak_is_found_and_its_cause_named(change: dict[str, Any], cause: str) -> None:
    fields = to_hf(batch_of(*LENGTHS)) | change
    found = verify_isolation(tiny_llama(), fields)
    assert not found.isolated
    assert cause in str(found.cause)
    assert "leak" in str(found)


def test_a_call_that_joins_documents_is_stopped() -> None:
    model, batch = guard(tiny_llama().train()), batch_of(*LENGTHS)
    model(**to_hf(batch))
    ones: dict[str, Any] = {"attention_mask": torch.ones_like(batch.tokens)[None]}
    cached: dict[str, Any] = {"use_cache": True}
    for change, words in [(ones, "2-D attention_mask"), (cached, "has a cache")]:
        with pytest.raises(ValueError, match=words):
            model(**to_hf(batch) | change)
    with pytest.raises(ValueError, match="neither position_ids nor cu_seq_lens_q"):
        model(input_ids=batch.tokens[None])
    with torch.no_grad():
        model(input_ids=batch.tokens[None])
    guard(model, allow_unpacked=True)(input_ids=batch.tokens[None])


def test_first_calls_of_one_document_each_are_stopped_and_later_ones_are_not() -> None:
    """As DataCollatorWithFlattening and TRL's packing=True make of packs."""
    one, several = to_axolotl(batch_of(20)), to_axolotl(batch_of(*LENGTHS))
    model = guard(tiny_llama().train())
    for _ in range(7):
        model(**one)
    with pytest.raises(ValueError, match="8th, and all had one document"):
        model(**one)
    model = guard(tiny_llama().train())
    for call in [one] * 7 + [several] + [one] * 9:
        model(**call)
    model = guard(tiny_llama().train(), allow_unpacked=True)
    for _ in range(9):
        model(**one)


FAULT = importlib.import_module("packprep.loaders.guard")._fault
POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 0]])
ENDS, ONES = torch.tensor([0, 3, 5, 6]), torch.ones(1, 6, dtype=torch.long)
LENGTHS_ONLY: dict[str, Any] = {"position_ids": None, "cu_seq_lens_q": ENDS}
WHOLE = {"cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS, "max_length_q": 3, "max_length_k": 3}


@pytest.mark.parametrize(
    ("attention", "call", "words"),
    [
        ("sdpa", {"attention_mask": torch.tensor([[1, 1, 1, 0, 0, 0]])}, None),  # padding
        ("sdpa", LENGTHS_ONLY, "sdpa attention does not read cu_seq_lens_q"),
        ("flash_attention_2", {"attention_mask": ONES}, None),
        ("flash_attention_2", {"attention_mask": ONES.tril(-1)}, None),
        ("flash_attention_2", {"attention_mask": (POSITIONS != 2).long()}, "2-D attention_mask"),
        ("flash_attention_2", LENGTHS_ONLY, "without cu_seq_lens_k, max_length_q, max_length_k"),
        ("flash_attention_2", LENGTHS_ONLY | {"cu_seq_lens_q": torch.tensor([0, 6])}, None),
        ("flash_attention_2", {"position_ids": POSITIONS.repeat(2, 1)}, "has 2 rows"),
        ("flash_attention_2", {"position_ids": POSITIONS.repeat(2, 1), **WHOLE}, None),
        ("flash_attention_2", {"position_ids": torch.arange(6).repeat(2, 1)}, None),
        ("flash_attention_2", {"position_ids": POSITIONS.repeat(4, 2, 1)}, "has 2 rows"),
        ("flash_attention_2", {"position_ids": POSITIONS.repeat(3, 2, 1)}, None),  # of images
        ("sdpa", {"attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0]])}, "2-D attention_mask"),
        ("of_the_user", {"attention_mask": ONES}, None),
    ],
)
def test_each_attention_reads_boundaries_of_its_own(
    attention: str, call: dict[str, Any], words: str | None
) -> None:
    config: Any = SimpleNamespace(_attn_implementation=attention)
    config.get_text_config = lambda: config
    call = {"position_ids": POSITIONS, **call}
    tokens = POSITIONS if call["position_ids"] is None else call["position_ids"]
    call["input_ids"] = tokens[0] if tokens.dim() == 3 else tokens
    fault = FAULT(SimpleNamespace(config=config), call, False)
    assert words in fault if words else fault is None
