"""Random mixes that repeat documents, built and verified: `verify` must find nothing in them.

A mix is two sources of texts, conversations, token ids with a loss mask, or pairs, some of them
longer than a pack, drawn up to three times; a build is random options over it.
"""

import itertools
import json
import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

from packprep import build
from packprep.config.option import STRATEGY_NAMES
from packprep.inspect.verify import verify
from packprep.support.errors import ConfigError, InputError
from tests.chat.test_build import TEMPLATE
from tests.helpers.corpus import save_tokenizer, texts, write_jsonl
from tests.helpers.files import config

from .fuzz import Tally

_KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "chat": {"messages_column": "messages"},
    "ids": {"input_ids_column": "ids", "loss_mask_column": "mask"},
    "pairs": {"pair_columns": "first,second"},
}
_SWEEP: dict[str, Any] = (
    {"strategy": list(STRATEGY_NAMES), "overflow": ["split", "truncate", "drop"]}
    | {"min_pack_tokens": [0, 0, 12], "stride": [0, 0, 5], "continuation_bos": [False, True]}
    | {"truncation_side": ["right", "left", "balanced"], "max_length": [16, 32, 64, 512]}
    | {"min_document_tokens": [1, 4], "max_document_tokens": [None, 90]}
    | {"bos": ["auto", "none", "</s>"], "eos": ["auto", "none"], "holdout": [0.0, 0.0, 0.3]}
    | {"pad_segment_to_multiple": [1, 1, 4], "packs_multiple_of": [1, 1, 8]}
    | {"remainder": ["drop", "fill"], "order": ["shuffle", "input", "length", "balanced"]}
    | {"columns": ["position_ids,document_ids,document_starts"], "train_overlap": [False, True]}
    | {"shard_size": ["4KB", "500MB"], "unit_size": ["2KB", "64MB"], "window": ["4KB", "4GB"]}
    | {"limit": [None], "truncate_at": [None], "max_segments_per_pack": [None, 3]}
    | {"min_loss_tokens": [0, 1, 5], "max_tokens": [None, None, 3000], "seed": [0, 1, 2]}
)
"""Every option that shapes packs; a combination that a build refuses is left out."""
# Amounts of the two sources; the first of them repeats documents.
_AMOUNTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"epochs": 2}, {"epochs": 1}),
    ({"epochs": 2.5}, {"epochs": 0.4}),
    ({"epochs": 3}, {}),
    ({"weight": 5, "max_epochs": 3}, {"weight": 1}),
]


def check_mixes(count: int, seed: int) -> Tally:
    """Check `count` random mixes with repeated documents, and those without that come up.

    The same for the same seed.

    AssertionError names the options of one that `verify` rejects.
    """
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        side = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
        save_tokenizer(root / "tok", config=side)
        for kind in _KINDS:
            for number, size in enumerate((24, 40)):
                write_jsonl(root / f"{kind}-{number}.jsonl", _rows(kind, texts(size, seed=number)))
        for case in itertools.count():
            if tally.cases == count:
                return tally
            outcomes = _check(root, random.Random(f"mix {seed} {case}"))
            tally.cases += bool(outcomes)
            tally.outcomes.update(outcomes)
    return tally


def _rows(kind: str, texts: list[str]) -> list[dict[str, Any]]:
    """Rows of a kind made of these texts; where there are labels, some rows have few of them."""
    draw, rows = random.Random(0), list[dict[str, Any]]()
    for text in texts:
        answer = " ".join(text.split()[: draw.choice((1, 3, 40, 400))]) or "the cat"
        if kind == "text":
            rows.append({"text": text})
        elif kind == "chat":
            said = {"user": text or "the dog", "assistant": answer}
            turns = [{"role": role, "content": content} for role, content in said.items()]
            rows.append({"messages": turns * draw.choice((1, 1, 3))})
        elif kind == "ids":
            ids, share = [draw.randrange(320) for _ in text.split()], draw.choice((0, 0.1, 0.6, 1))
            rows.append({"ids": ids, "mask": [int(draw.random() < share) for _ in ids]})
        else:
            rows.append({"first": text or "the dog", "second": answer})
    return rows


def _check(root: Path, draw: random.Random) -> list[str]:
    """Build and verify one mix.

    Returns what it is an example of; nothing where it repeats no document, or no build takes its
    options.
    """
    kind, amounts = draw.choice(list(_KINDS)), draw.choice(_AMOUNTS)
    options = {key: draw.choice(values) for key, values in _SWEEP.items()} | _KINDS[kind]
    if kind == "ids":
        options |= {"vocab_size": 320, "bos": "none", "eos": "none"}
    else:
        options |= {"tokenizer": str(root / "tok")}
    if kind == "chat":
        options |= {"bos": "auto", "eos": "auto"}
    # Options of one mode or strategy are left out of another, so that each comes up often.
    if options["overflow"] != "truncate":
        options["truncation_side"] = "right"
    if options["strategy"] == "wrapped":
        options |= {"pad_segment_to_multiple": 1, "max_segments_per_pack": None}
    if options["overflow"] != "split" or options["strategy"] == "wrapped":
        options |= {"stride": 0, "continuation_bos": False}
    options["train_overlap"] &= options["stride"] > 0
    files = enumerate(amounts)
    sources = [{"path": str(root / f"{kind}-{n}.jsonl")} | amount for n, amount in files]
    output = root / "out"
    options |= {"sources": sources, "engine": "hf", "verify_engine": 0, "num_proc": 1}
    try:
        built = build(config(output=output, **options))
    except ConfigError:
        return []
    except InputError as error:
        expected = ("no document is left", "drops all packs of the split", "has no tokens to mix")
        assert any(words in str(error) for words in expected), error
        return []
    found = [str(finding) for finding in verify(output, level="full").findings]
    shutil.rmtree(output)
    assert not found, f"{json.dumps(options)}: {found}"
    if not built.data["repeated"]["documents"]:
        return []
    side = f" {options['truncation_side']}" if options["overflow"] == "truncate" else ""
    return [kind, options["strategy"], options["overflow"] + side]
