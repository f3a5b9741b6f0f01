"""Measure which calls keep documents apart in which transformers models, on tiny models.

\b
python scripts/checks/families.py                              prints the table
python scripts/checks/families.py gpt_oss opt                  prints two rows
python scripts/checks/families.py --page docs/isolation.md     writes it to the page

Builds a random float32 model of each family on the CPU: two layers, windows of 4 tokens, weights
large enough to show a leak; sizes are in families.yaml. Compares its logits on a pack of four
documents with those on each document alone.
"""

import os
import platform
import re
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import click
import numpy as np
import torch
import transformers
import yaml
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.utils import logging

from packprep.loaders import PackedBatch, batch_from_rows, to_hf, to_hf_4d, verify_isolation

_SIZES: Any = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())
FAMILIES: dict[str, dict[str, Any]] = {
    family: each["sizes"] for each in _SIZES["families"] for family in each["of"]
}
SIZES: dict[str, Any] = _SIZES["sizes"]
BEGIN, END = "<!-- families -->\n", "<!-- end of families -->"
LENGTHS = (17, 1, 30, 20)
# Classes of families that AutoModelForCausalLM does not build.
_CLASSES = {
    "kimi_k25": "Kimi_K25ForConditionalGeneration",
    "mistral4": "Mistral4ForCausalLM",
    "mllama_text_model": "MllamaForCausalLM",
}
Call = Callable[[PackedBatch, Any], Mapping[str, Any]]
CALLS: dict[str, Call] = {
    "`to_hf`": lambda batch, _: to_hf(batch),
    "without `seq_idx`": lambda batch, _: {
        name: value for name, value in to_hf(batch).items() if name != "seq_idx"
    },
    "`to_hf_4d`": to_hf_4d,
}


def tiny_model(family: str, attention: str) -> Any:
    """A random model of a family, the same in every run; None if it lacks this attention."""
    torch.manual_seed(0)
    fields = FAMILIES[family]
    text = {"text_config": SIZES | fields["text_config"]} if "text_config" in fields else {}
    config = CONFIG_MAPPING[family](**(fields | text if text else SIZES | fields))
    try:
        if family in _CLASSES:
            model = getattr(transformers, _CLASSES[family])
            return model._from_config(config, attn_implementation=attention).eval()
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    except ValueError as error:
        if "does not support an attention implementation" in str(error):
            return None
        raise


def cell(model: Any, batch: PackedBatch, call: Call) -> str:
    """`isolated`, `leak` with the largest difference of a logit, or `refused` with the reason."""
    try:
        isolation = verify_isolation(model, batch, inputs=lambda batch: call(batch, model.config))
    except (ValueError, RuntimeError) as error:
        kernel = re.search(r"packed sequences apart without `([\w-]+)`", str(error))
        return f"refused, needs {kernel[1]}" if kernel else "refused"
    return "isolated" if isolation.isolated else f"leak {isolation.largest:.1f}"


def row(family: str) -> list[str]:
    """Row of a family: its name, its kinds of attention, and a cell for each call.

    A cell has one verdict, or one for each kind of attention if they differ.
    """
    ids = np.random.default_rng(0).integers(3, SIZES["vocab_size"], sum(LENGTHS))
    batch = batch_from_rows([{"tokens": ids, "cu_seqlens": np.cumsum([0, *LENGTHS])}])
    models = {kind: model for kind in ("sdpa", "eager") if (model := tiny_model(family, kind))}
    for model in models.values():
        model(input_ids=batch.torch().tokens[None], use_cache=False)  # an error here: wrong sizes
    cells = [family, ", ".join(models)]
    for call in CALLS.values():
        verdicts = {kind: cell(model, batch, call) for kind, model in models.items()}
        one, *others = {*verdicts.values()}
        cells.append(", ".join(f"{k}: {v}" for k, v in verdicts.items()) if others else one)
    return cells


@click.command(help=__doc__)
@click.argument("families", nargs=-1, type=click.Choice([*FAMILIES]), metavar="[FAMILY]...")
@click.option("--page", type=click.Path(exists=True, path_type=Path), help="Page to write to.")
def main(families: tuple[str, ...], page: Path | None) -> None:
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    head = ["family", "attention", *CALLS]
    lines = [head, ["---"] * len(head), *map(row, families or sorted(FAMILIES))]
    made = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    libraries = f"transformers {transformers.__version__}, torch {torch.__version__}"
    made += f"\n{date.today()}, {libraries}, Python {platform.python_version()}.\n"
    if page is None:
        click.echo(made, nl=False)
    else:
        before, rest = page.read_text().split(BEGIN)
        page.write_text(before + BEGIN + made + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
