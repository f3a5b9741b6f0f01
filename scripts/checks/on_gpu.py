"""Check on a GPU what the tests check on a CPU: that packs are as their documents alone.

\b
python scripts/checks/on_gpu.py packed                 a minute on one GPU
python scripts/checks/on_gpu.py packed --device cpu    the same code on a CPU, to try it

PACKED is an output of packprep build. Prints `verify_isolation` of a small Llama by each attention
of transformers, and exits 1 if documents do not stay apart.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from packprep.loaders import PackedLoader, to_hf, to_hf_4d, verify_isolation


@click.command(help=__doc__)
@click.argument("packed", type=click.Path(exists=True, path_type=Path))
@click.option("--device", default="cuda", show_default=True, help="cuda or cpu")
def main(packed: Path, device: str) -> None:
    card = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {card}", flush=True)
    loader, holds = PackedLoader(packed, 1), True
    steps = range(min(64, len(loader)))
    batch = max((loader[step].torch() for step in steps), key=lambda batch: batch.num_segments)
    sizes: dict[str, Any] = {"vocab_size": loader.shards.vocab_size, "num_hidden_layers": 2}
    sizes |= {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    names = {"sdpa": torch.float32, "eager": torch.float32}
    if device == "cuda":  # on a CPU flex compiles for minutes
        names |= {"flash_attention_2": torch.bfloat16, "flex_attention": torch.float32}
    for name, dtype in names.items():
        config = LlamaConfig(attn_implementation=name, **sizes)
        calls: dict[str, Any] = {"to_hf": to_hf}
        if name in ("sdpa", "eager"):
            calls["to_hf_4d"] = partial(to_hf_4d, config=config, dtype=dtype)
        for call, inputs in calls.items():
            try:
                torch.manual_seed(0)
                model = LlamaForCausalLM(config).to(device, dtype)
                found = verify_isolation(model, batch.to(device), inputs=inputs)
            except (ImportError, ValueError, NotImplementedError) as error:
                print(f"not run: transformers {name}: {str(error).splitlines()[0][:90]}")
                continue
            holds &= found.isolated
            state = "ok" if found.isolated else "FAILED"
            print(f"{state:6}  transformers {name}, {call}: {found}", flush=True)
    sys.exit(not holds)


if __name__ == "__main__":
    main()
