"""Random mixes that repeat documents: `verify` finds nothing in them.

A mix is two sources of texts, conversations, token ids with a loss mask, or pairs, some of them
longer than a pack; a build is random options over it.
"""

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from packprep import build
from packprep.config.grammar.option import STRATEGY_NAMES
from packprep.inspect.verify import verify
from packprep.support.errors import ConfigError, InputError
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.examples import share_of_examples
from tests.helpers.files import config
from tests.helpers.zoo import CHAT_TEMPLATE, chat_rows, pair_rows


def id_rows() -> list[dict[str, Any]]:
    """Of texts; some rows have few labels, some have none."""
    draw, rows = random.Random(0), list[dict[str, Any]]()
    for text in texts(32):
        ids, share = [draw.randrange(320) for _ in text.split()], draw.choice((0, 0.1, 0.6, 1))
        rows.append({"ids": ids, "mask": [int(draw.random() < share) for _ in ids]})
    return rows


KINDS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "text": (texts(32), {}),
    "chat": (chat_rows(32), {"messages_column": "messages", "bos": "auto", "eos": "auto"}),
    "ids": (id_rows(), {"input_ids_column": "ids", "loss_mask_column": "mask", "vocab_size": 320}),
    "pairs": (pair_rows(32), {"prompt_column": "prompt", "pair_columns": "chosen,rejected"}),
}
KINDS["pairs"][1].update(bos="auto", eos="auto")
KINDS["ids"][1].update(bos="none", eos="none", tokenizer=None)
VALUES: dict[str, Any] = (
    {"strategy": list(STRATEGY_NAMES), "max_length": [16, 32, 64, 512]}
    | {"min_pack_tokens": [0, 0, 12], "stride": [0, 0, 5], "continuation_bos": [False, True]}
    | {"overflow": ["split", "truncate", "truncate:left", "truncate:balanced", "drop"]}
    | {"min_document_tokens": [1, 4], "max_document_tokens": [None, 90]}
    | {"bos": ["auto", "none", "</s>"], "eos": ["auto", "none"], "holdout": [0.0, 0.0, 0.3]}
    | {"pad_segment_to_multiple": [1, 1, 4], "packs_multiple_of": [1, 8, "8:fill"]}
    | {"order": ["shuffle", "input", "length", "balanced"]}
    | {"columns": ["position_ids,document_ids,document_starts"], "train_overlap": [False, True]}
    | {"shard_size": ["4KB", "500MB"], "unit_size": ["2KB", "64MB"], "window": ["4KB", "4GB"]}
    | {"limit": [None], "truncate_at": [None], "max_segments_per_pack": [None, 3]}
    | {"min_loss_tokens": [0, 1, 5], "max_tokens": [None, None, 1500], "seed": [0, 1, 2]}
)
CHOICES = {key: st.sampled_from(values) for key, values in VALUES.items()}
# Amounts of the two sources; the first of them repeats documents.
AMOUNTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"epochs": 2}, {"epochs": 1}),
    ({"epochs": 2.5}, {"epochs": 0.4}),
    ({"epochs": 3}, {}),
    ({"weight": 5, "max_epochs": 3}, {"weight": 1}),
]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@given(options=st.fixed_dictionaries(CHOICES), amounts=st.sampled_from(AMOUNTS))
@settings(
    max_examples=share_of_examples(14),
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
def test_verify_is_silent_on_random_mixes_that_repeat_documents(
    kind: str, options: dict[str, Any], amounts: tuple[dict[str, Any], ...]
) -> None:
    rows, columns = KINDS[kind]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": CHAT_TEMPLATE}
        options |= {"tokenizer": save_tokenizer(folder / "tok", config=side)} | columns
        paths = [folder / f"{number}.jsonl" for number in range(2)]
        for path, part in zip(paths, (rows[:12], rows[12:]), strict=True):
            write_jsonl(path, part)
        sources = [{"path": str(path)} | each for path, each in zip(paths, amounts, strict=True)]
        options |= {"sources": sources, "engine": "hf", "verify_engine": 0, "num_proc": 1}
        try:
            build(config(output=folder / "out", **options))
        except ConfigError:  # options that exclude each other
            assume(False)
        except InputError as error:
            known = ("no document is left", "drops all packs of the split", "has no tokens to mix")
            assert any(words in str(error) for words in known), error
            return
        assert [*map(str, verify(folder / "out", level="full").findings)] == []
