r"""Train on packed preference pairs by direct preference optimization (DPO; Rafailov et al., 2023).

    (echo prompt,chosen,rejected; \
     for a in $(seq 200); do echo "Is $a a number?,Yes: $a.,No: $a."; done) > pairs.csv
    packprep build pairs.csv -o pairs --tokenizer qwen3 --prompt-column prompt \
        --pair-columns chosen,rejected --overflow truncate --max-length 512
    python scripts/examples/train_dpo.py pairs --steps 20

Each step runs the policy and a frozen copy of it, the reference, on whole packs: both sides of
every pair in one pass, without padding. Each step prints the loss, the share of pairs with a
positive margin, and the mean margin. The first loss is ln 2, because policy and reference are still
equal.

TRL 1.16 cannot train on packed pairs: its DPOTrainer pads rows and disables padding_free. The sums
of log-probabilities here equal those that it computes for separate rows.
"""

import copy
import json
from pathlib import Path
from typing import Any

import click
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from packprep.loaders import (
    PackedBatch,
    PackedLoader,
    PackedShards,
    PairLogProbs,
    pair_log_probs,
    to_hf,
    verify_isolation,
)


def tiny_policy(vocabulary: int) -> Any:
    """A Llama with two layers and random weights, so that the example runs anywhere."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **sizes))


def log_probs(model: Any, batch: PackedBatch) -> PairLogProbs:
    """Summed log-probabilities of the answers of each pair, chosen and rejected.

    To avoid the logits of a large vocabulary, call selective_log_probs with the last hidden state
    and the weight of the output layer, and pass its result to pair_log_probs.
    """
    fields = to_hf(batch, sides="both")  # without labels: the loss is not the model's own
    return pair_log_probs(model(**fields).logits, batch)


def reward_margins(policy: PairLogProbs, reference: PairLogProbs, beta: float) -> torch.Tensor:
    """Reward margins, float [pairs].

    A margin is beta times the difference between policy and reference in how much they prefer the
    chosen answer.
    """
    margins: torch.Tensor = beta * (
        (policy.chosen - reference.chosen) - (policy.rejected - reference.rejected)
    )
    return margins


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("shards", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--model",
    "name",
    help="transformers model to start from, a path or a name  [default: a tiny random one]",
)
@click.option("--steps", default=20, show_default=True)
@click.option("--packs", default=1, show_default=True, help="packs per step")
@click.option(
    "--beta",
    default=0.1,
    show_default=True,
    help="strength of the penalty for leaving the reference",
)
@click.option(
    "--lr", default=1e-3, show_default=True, help="learning rate; about 1e-6 for a trained model"
)
@click.option("--device", default="cpu", show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--save", type=click.Path(path_type=Path), help="write the trained policy to this folder"
)
def main(
    shards: Path,
    name: str | None,
    steps: int,
    packs: int,
    beta: float,
    lr: float,
    device: str,
    seed: int,
    save: Path | None,
) -> None:
    torch.manual_seed(seed)
    opened = PackedShards(shards)
    loader = PackedLoader(opened, packs, seed=seed, sides="both")
    policy: Any = (
        tiny_policy(opened.manifest.vocab_size)
        if name is None
        else AutoModelForCausalLM.from_pretrained(name)
    )
    policy.to(device).eval()  # no dropout: policy and reference must differ by their weights only
    reference = copy.deepcopy(policy).requires_grad_(False)
    isolation = verify_isolation(policy, loader[0].to(device))
    if not isolation.isolated:
        raise click.ClickException(str(isolation))
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)
    step = 0
    while step < steps:
        for batch in loader:
            if step == steps:
                break
            step += 1
            moved = batch.to(device)
            with torch.no_grad():
                frozen = log_probs(reference, moved)
            margins = reward_margins(log_probs(policy, moved), frozen, beta)
            loss: Any = -logsigmoid(margins).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            line = {
                "step": step,
                "loss": round(loss.item(), 7),
                "accuracy": round((margins > 0).float().mean().item(), 4),
                "margin": round(margins.mean().item(), 4),
                "pairs": len(margins),
            }
            print(json.dumps(line), flush=True)
        loader.set_epoch(loader.epoch + 1)
    if save is not None:
        policy.save_pretrained(save)


if __name__ == "__main__":
    main()
