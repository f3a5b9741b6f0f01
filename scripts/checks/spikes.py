"""Train a tiny Llama on chats with planted noise, and compare the spikes with what was planted.

    python scripts/checks/spikes.py [--epochs 3] [--planted 5]

Answers of `--planted` of the 518 conversations of `packprep sample` become random tokens. The
model trains on packs of 1,024 tokens, logs its losses, and `packprep spike` names documents. Exits
1 if they are others than the planted ones. Some minutes on two cores.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import click
from tokenizers import Tokenizer

from packprep import BuildConfig, build
from packprep.cli.sample_data import sample_files
from packprep.inspect.spikes import find_spikes
from packprep.loaders import LossLog, PackedLoader, segment_means, to_hf
from packprep.schemas.manifest import read_manifest


def planted_chats(data: Path, path: Path, planted: int) -> list[int]:
    """Write the chats with noise in place of some answers. Returns their rows."""
    rows = [json.loads(line) for line in (data / "chats.jsonl").read_text().splitlines()]
    tokenizer = Tokenizer.from_file(str(data / "tokenizer" / "tokenizer.json"))
    draw = random.Random(0)
    chosen = sorted(draw.sample(range(len(rows)), planted))
    for row in chosen:
        noise = draw.choices(range(300, tokenizer.get_vocab_size()), k=200)
        rows[row]["messages"][-1]["content"] = tokenizer.decode(noise)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return chosen


def train(output: Path, log: Path, epochs: int) -> None:
    """Train the model, and log the losses of all segments."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "attn_implementation": "sdpa"}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16_384, **sizes, **heads))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = PackedLoader(output, 1)
    step = 0
    with LossLog(log, loader) as losses:
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            for batch in loader:
                call = to_hf(batch)
                labels = call.pop("labels")[0].roll(-1)
                hidden = model.model(**call).last_hidden_state[0]
                trained = labels != -100
                each = torch.zeros(len(labels))
                each[trained] = cross_entropy(
                    model.lm_head(hidden[trained]), labels[trained], reduction="none"
                )
                torch.autograd.backward(each[trained].mean())
                optimizer.step()
                optimizer.zero_grad()
                losses.add(step, batch, segment_means(each, trained, batch.torch().cu_seqlens))
                step += 1
            click.echo(f"epoch {epoch}: loss {float(each[trained].detach().mean()):.2f}")


@click.command(help=__doc__)
@click.option("--epochs", default=3, show_default=True)
@click.option("--planted", default=5, show_default=True)
def main(epochs: int, planted: int) -> None:
    with tempfile.TemporaryDirectory(prefix="packprep-") as place:
        folder = Path(place)
        for name, content in sample_files().items():
            (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "data" / name).write_bytes(content)
        rows = planted_chats(folder / "data", folder / "chats.jsonl", planted)
        config = BuildConfig(
            sources=(str(folder / "chats.jsonl"),),
            output=str(folder / "packed"),
            tokenizer=str(folder / "data" / "tokenizer"),
            messages_column="messages",
            max_length=1024,
        )
        build(config)
        train(folder / "packed", folder / "losses", epochs)
        manifest = read_manifest(folder / "packed")
        _, spikes = find_spikes(folder / "losses", folder / "packed", manifest)
    for spike in spikes:
        click.echo(
            f"step {spike.step}: row {spike.document}, loss {spike.loss:.2f}, usual "
            f"{spike.usual:.2f}, score {spike.score:.1f}"
        )
    named = sorted({spike.document for spike in spikes})
    click.echo(f"planted {rows}, named {named}")
    sys.exit(named != rows)


if __name__ == "__main__":
    main()
