"""Measure which calls keep documents apart in which transformers models, on tiny models.

\b
python scripts/checks/families.py                                 prints the table
python scripts/checks/families.py --family gpt_oss --family opt   prints two rows
python scripts/checks/families.py --page docs/train/isolation.md writes it to the page

Builds a random float32 model of each family on the CPU: two layers, windows of 4 tokens, weights
large enough to show a leak. Compares its logits on a pack of four documents with those on each
document alone.
"""

import os
import platform
import re
from collections.abc import Callable, Mapping
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import click
import numpy as np
import torch
import transformers
from family_sizes import FAMILIES, SIZES, VOCABULARY
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.utils import logging

from packprep.loaders import PackedBatch, batch_from_rows, to_hf, to_hf_4d, verify_isolation

BEGIN, END = "<!-- families -->\n", "<!-- end of families -->"
LENGTHS = (17, 1, 30, 20)

# Classes of families that AutoModelForCausalLM does not build.
_CLASSES = {
    "kimi_k25": "Kimi_K25ForConditionalGeneration",
    "mistral4": "Mistral4ForCausalLM",
    "mllama_text_model": "MllamaForCausalLM",
}

CALLS: dict[str, Callable[[PackedBatch, Any], Mapping[str, Any]]] = {
    "`to_hf`": lambda batch, _: to_hf(batch),
    "without `seq_idx`": lambda batch, _: {
        name: value for name, value in to_hf(batch).items() if name != "seq_idx"
    },
    "`to_hf_4d`": lambda batch, config: to_hf_4d(batch, config),
}


def tiny_model(family: str, attention: str, **changes: Any) -> Any:
    """A random model of a family, the same in every run.

    Raises ValueError if the family does not have this attention.
    """
    torch.manual_seed(0)
    fields = FAMILIES[family] | changes
    if "text_config" in fields:
        config = CONFIG_MAPPING[family](**fields | {"text_config": SIZES | fields["text_config"]})
    else:
        config = CONFIG_MAPPING[family](**SIZES | fields)
    if family in _CLASSES:
        model = getattr(transformers, _CLASSES[family])
        return model._from_config(config, attn_implementation=attention).eval()
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()


def pack() -> PackedBatch:
    """One pack of four documents of random tokens."""
    tokens = np.random.default_rng(0).integers(3, VOCABULARY, sum(LENGTHS))
    return batch_from_rows([{"tokens": tokens, "cu_seqlens": np.cumsum([0, *LENGTHS])}])


def cell(model: Any, call: Callable[[PackedBatch, Any], Mapping[str, Any]]) -> str:
    """`isolated`, `leak` with the largest difference of a logit, or `refused` with the reason."""
    try:
        isolation = verify_isolation(model, pack(), inputs=lambda batch: call(batch, model.config))
    except (ValueError, RuntimeError) as error:
        kernel = re.search(r"packed sequences apart without `([\w-]+)`", str(error))
        return f"refused, needs {kernel[1]}" if kernel else "refused"
    return "isolated" if isolation.isolated else f"leak {isolation.largest:.1f}"


def row(family: str) -> list[str]:
    """Row of a family: its name, its kinds of attention, and a cell for each call.

    A cell has one verdict, or one for each kind of attention if they differ.
    """
    models = {}
    for attention in ("sdpa", "eager"):
        try:
            models[attention] = tiny_model(family, attention)
        except ValueError as error:
            if "does not support an attention implementation" not in str(error):
                raise
    tokens = pack().torch().tokens[None]
    for model in models.values():
        model(input_ids=tokens, use_cache=False)  # an error here is one of the sizes
    cells = [family, ", ".join(models)]
    for call in CALLS.values():
        verdicts = {attention: cell(model, call) for attention, model in models.items()}
        same = len(set(verdicts.values())) == 1
        cells.append(
            next(iter(verdicts.values()))
            if same
            else ", ".join(f"{k}: {v}" for k, v in verdicts.items())
        )
    return cells


def table(families: list[str]) -> str:
    """The table in Markdown, with date and versions below."""
    head = ["family", "attention", *CALLS]
    lines = [head, ["---"] * len(head), *map(row, families)]
    measured_with = (
        f"{date.today()}, transformers {version('transformers')}, torch {version('torch')}"
    )
    return (
        "".join(f"| {' | '.join(line)} |\n" for line in lines)
        + f"\n{measured_with}, Python {platform.python_version()}.\n"
    )


@click.command(help=__doc__)
@click.option(
    "--family",
    "families",
    multiple=True,
    type=click.Choice([*FAMILIES]),
    help="Family to measure; may be repeated.  [default: all]",
)
@click.option(
    "--page", type=click.Path(exists=True, path_type=Path), help="Page to write the table to."
)
def main(families: tuple[str, ...], page: Path | None) -> None:
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    markdown = table([*(families or FAMILIES)])
    if page is None:
        click.echo(markdown, nl=False)
    else:
        before, rest = page.read_text().split(BEGIN)
        page.write_text(before + BEGIN + markdown + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
