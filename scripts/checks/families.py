"""Measure which calls keep documents apart in which transformers models, on tiny models.

\b
python scripts/checks/families.py                                prints the table
python scripts/checks/families.py --family gpt_oss --family opt  prints two rows
python scripts/checks/families.py --page docs/isolation.md       writes it to the page

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
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.utils import logging

from packprep.loaders import PackedBatch, batch_from_rows, to_hf, to_hf_4d, verify_isolation

BEGIN, END = "<!-- families -->\n", "<!-- end of families -->"
LENGTHS = (17, 1, 30, 20)
VOCABULARY = 64

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
_WINDOW: dict[str, Any] = {"sliding_window": 4, "head_dim": 8}
_BOTH_KINDS: dict[str, Any] = _WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": _EXPERTS | {"head_dim": 8},
    "mistral": _WINDOW,
    "ministral": _WINDOW,
    "mixtral": _WINDOW | {"num_local_experts": 4},
    "gemma": {"head_dim": 8},
    "gemma2": _BOTH_KINDS,
    "gemma3_text": _BOTH_KINDS,
    "phi": {},
    "phi3": {"sliding_window": 4},
    "phimoe": {"num_local_experts": 4},
    "olmo2": {},
    "olmo3": {"sliding_window": 4, "layer_types": _BOTH_KINDS["layer_types"]},
    "olmoe": _EXPERTS,
    "granite": {},
    "granitemoe": {},
    "smollm3": {},
    "gpt2": _GPT,
    "gptj": _GPT | {"rotary_dim": 4},
    "gpt_bigcode": _GPT,
    "gpt_neox": {},
    "stablelm": {},
    "starcoder2": {"sliding_window": 4},
    "cohere": {},
    "cohere2": _BOTH_KINDS,
    "glm4": {"head_dim": 8},
    "exaone4": {},
    "seed_oss": {"head_dim": 8},
    "nemotron": {},
    "gpt_oss": _BOTH_KINDS | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "afmoe": _BOTH_KINDS,
    "falcon": {"alibi": False},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.2},
    "biogpt": {},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48, "init_std": 0.2},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 512},
    "bloom": {"n_head": 4, "n_layer": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 64, "head_dim": 8},
    "granitemoehybrid": _MAMBA
    | {
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 4,
        "shared_intermediate_size": 16,
    },
    "qwen3_next": _EXPERTS
    | {
        "head_dim": 8,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "shared_expert_intermediate_size": 16,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "jamba": {
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "num_experts": 2,
        "use_mamba_kernels": False,
    },
    "minimax": {"head_dim": 8},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 4},
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 1, "chunk_size": 16},
    "falcon_mamba": {"state_size": 8},
    "rwkv": {"attention_hidden_size": 32},
    "xlstm": {},
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
    config = CONFIG_MAPPING[family](**(_SIZES | FAMILIES[family] | changes))
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
