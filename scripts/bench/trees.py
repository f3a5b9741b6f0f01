"""Shared prefixes: the speed of planning trees, and what a build with them costs and saves.

\b
python scripts/bench/trees.py [--chats FILE] [--answers FILE] [--tokenizer DIR]

First rows in memory (`--tokens`, rows of 200 on average; of a group of eight, either all begin with
one prompt of 120 tokens, or each begins with the one before): tokens of rows per CPU second of one
thread, median of `--repeats`. *Merge* is the order of the rows, the cut of trees that are larger
than a pack, and the nodes. *Plan* is all that a window takes, from documents to packs; its rows are
in a random order, so that those of a group are apart.

Then builds of conversations with --turns each, with and without --share-prefixes, in turn, each a
process of its own: seconds of all of it, tokenizing included, and again from kept tokens.

Then forward and backward passes of a small model over packs of both, with a dense mask on the CPU.

Then eight answers to each prompt of --answers (JSON lines with text, of which the first line is the
prompt). They are made up: the words of the real answer in eight random orders, so that answers
share little more than their prompt.
"""

import gzip
import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import loader
import numpy as np
import tables
from common import lines, measure

from packprep import BuildConfig
from packprep.engines.tokenizer import Tokenizer
from packprep.inspect.report_file import read_report
from packprep.schemas.index.runs import Pointers
from packprep.trees.cut_trees import cut_oversized
from packprep.trees.merge import merge_prefixes
from packprep.trees.nodes import tree_nodes
from packprep.windows.documents import PREFIX_GROUP, Documents
from packprep.windows.planner import plan_window

LENGTH, PROMPT, GROUP = 200, 120, 8
VOCABULARY = 50_000


@click.command(help=__doc__)
@click.option("--chats", type=click.Path(exists=True, path_type=Path))
@click.option("--answers", type=click.Path(exists=True, path_type=Path))
@click.option("--tokenizer", type=click.Path(exists=True, path_type=Path))
@click.option("--tokens", default="50M", show_default=True, help="Tokens of the rows to plan.")
@click.option("--repeats", default=5, show_default=True)
@click.option("--runs", default=3, show_default=True, help="Builds of each kind.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables.")
def main(
    chats: Path | None,
    answers: Path | None,
    tokenizer: Path | None,
    tokens: str,
    repeats: int,
    runs: int,
    markdown: bool,
) -> None:
    rows = loader.size_of(tokens) // (LENGTH * GROUP) * GROUP
    speeds = [
        _speeds(name, make(rows), repeats)
        for name, make in (("answers to a prompt", _answers), ("turns", _turns))
    ]
    tables.show(["rows", "tokens per token", "merge, M/s", "plan, M/s"], speeds, markdown)
    click.echo("builds of conversations, each turn a document")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if chats is None or tokenizer is None:
            measure(["-m", "packprep", "sample", str(folder / "data")])
            chats, tokenizer = folder / "data" / "chats.jsonl", folder / "data" / "tokenizer"
        given = [str(chats.absolute()), "--messages-column", "messages", "--turns", "each"]
        given += ["--tokenizer", str(tokenizer.absolute())]
        built = _builds(folder, given, runs)
        header = ["chats, --turns each", "seconds", "with trees", "ratio", "tokens per token"]
        tables.show(header, built, markdown)
        click.echo("a training step of these packs, dense mask")
        header = ["Llama, 4 layers of 256, CPU", "seconds a pack", "rows' tokens a pack", "M/s"]
        tables.show(header, _steps(folder), markdown)
        click.echo("eight answers to each prompt, --group-prefix")
        prompts = [text.split("\n", 1) for text in _texts(answers)] if answers else _pairs(chats)
        with (folder / "groups.jsonl").open("w") as file:
            for row in _groups(prompts):
                file.write(json.dumps(row) + "\n")
        out = folder / "groups"
        build = ["-m", "packprep", "build", str(folder / "groups.jsonl"), "-o", str(out), "--quiet"]
        build += ["--tokenizer", str(tokenizer), "--max-length", "4096"]
        measure([*build, "--share-prefixes", "--group-prefix", "prompt"])
        cells = [answers.name if answers else "sample", *_factor(out)]
        tables.show(["eight answers", "rows' tokens", "packed", "factor"], [cells], markdown)


def _answers(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and lengths of rows, of which eight begin with one prompt."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, VOCABULARY, (rows // GROUP, GROUP, LENGTH), dtype=np.int32)
    tokens[:, :, :PROMPT] = tokens[:, :1, :PROMPT]
    return tokens.ravel(), np.full(rows, LENGTH, np.int32)


def _turns(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and lengths of rows, of which seven begin with the row before."""
    draw = np.random.default_rng(0)
    step = 2 * LENGTH // (GROUP + 1)
    lengths = np.arange(step, (GROUP + 1) * step, step)[:GROUP]
    whole = draw.integers(0, VOCABULARY, (rows // GROUP, int(lengths[-1])), dtype=np.int32)
    tokens = np.concatenate([whole[:, :length] for length in lengths], axis=1)
    return tokens.ravel(), np.tile(lengths.astype(np.int32), rows // GROUP)


def _speeds(name: str, made: tuple[np.ndarray, np.ndarray], repeats: int) -> list[str]:
    tokens, lengths = made
    first = np.cumsum(lengths, dtype=np.int64) - lengths
    pointers = Pointers.into(tokens, first)
    starts = np.arange(0, len(lengths) + 1, GROUP)
    config = BuildConfig(share_prefixes=True, group_prefix="prompt", max_length=4096)
    documents = Documents(
        id=np.arange(len(lengths)),
        tokens=pointers,
        length=lengths,
        source=np.zeros(len(lengths), np.int32),
        group=None,
        values={PREFIX_GROUP: np.arange(len(lengths)) // GROUP},
    ).take(np.random.default_rng(0).permutation(len(lengths)))
    tokenizer = Tokenizer(json=b"", sha256="", vocab_size=VOCABULARY, bos=None, eos=None, pad_id=0)

    def merge() -> None:
        order, shared = merge_prefixes(pointers, lengths, starts)
        counts = lengths[order].astype(np.int64)
        tree_nodes(counts, cut_oversized(counts, shared, config.max_length))

    rules = config.pack_rules()
    plan = plan_window(documents, tokenizer, rules, seed=0)
    factor = len(tokens) / int(plan.packs.lengths.sum())
    merged = _per_second(len(tokens), merge, repeats)
    planned = _per_second(
        len(tokens), lambda: plan_window(documents, tokenizer, rules, seed=0), repeats
    )
    return [name, f"{factor:.2f}", f"{merged:,.0f}", f"{planned:,.0f}"]


def _per_second(tokens: int, work: Callable[[], Any], repeats: int) -> float:
    """Million tokens per CPU second; the first call is not measured."""
    work()
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return tokens / statistics.median(seconds) / 1e6


def _builds(folder: Path, given: Sequence[str], runs: int) -> list[list[str]]:
    """Seconds of whole builds and of builds from kept tokens, without and with trees."""
    build = ["-m", "packprep", "build", *given, "--max-length", "4096", "--quiet"]
    kept = ["--keep-tokens", str(folder / "kept")]
    measure([*build, "-o", str(folder / "rows"), *kept])
    measure([*build, "-o", str(folder / "trees"), "--share-prefixes"])  # compiles, the first time
    rows = []
    for name, more in (("whole build", []), ("from kept tokens", kept)):
        seconds: dict[str, list[float]] = {"rows": [], "trees": []}
        for _ in range(runs):
            for kind, option in (("rows", []), ("trees", ["--share-prefixes"])):
                out = folder / kind
                shutil.rmtree(out)  # or the build would find it done
                measured, _ = measure([*build, "-o", str(out), *more, *option])
                seconds[kind].append(measured["wall"])
        plain, trees = (statistics.median(seconds[kind]) for kind in ("rows", "trees"))
        ratio = statistics.median(
            one / other for one, other in zip(seconds["trees"], seconds["rows"], strict=True)
        )
        cells = [f"{plain:.1f}", f"{trees:.1f}", f"{ratio:.2f}", _factor(folder / "trees")[-1]]
        rows.append([f"{name} ({runs})", *cells])
    return rows


def _steps(folder: Path) -> list[list[str]]:
    """Forward and backward pass over packs of 4,096 tokens: median of five of each kind.

    Both with SDPA and a dense 4-D mask, so that only the tokens differ.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from packprep.loaders import PackedLoader, PackedShards, to_hf, to_hf_4d, tree_loss

    torch.manual_seed(0)
    cells, speeds = [], []
    for kind in ("rows", "trees"):
        shards = PackedShards(folder / kind)
        config = LlamaConfig(
            vocab_size=shards.manifest.vocab_size,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=4,
        )
        model = LlamaForCausalLM(config)
        batches = PackedLoader(shards, 1, shuffle=False, trees=kind == "trees")
        seconds, tokens = [], []
        for number in range(6):
            batch = batches[number].torch()
            labels = to_hf(batch)["labels"] if kind == "rows" else None
            call = to_hf_4d(batch, model.config)
            call.pop("labels", None)
            start = time.perf_counter()
            output = model(**call, labels=labels)
            loss = output.loss if kind == "rows" else tree_loss(output.logits, batch)
            loss.backward()
            seconds.append(time.perf_counter() - start)
            tokens.append(len(batch.unshared()))
        median, of_rows = statistics.median(seconds[1:]), statistics.mean(tokens[1:])
        speeds.append(of_rows / median)
        cells.append([kind, f"{median:.2f}", f"{of_rows:,.0f}", f"{of_rows / median / 1e6:.4f}"])
    ratio = speeds[1] / speeds[0]
    cells.append(["trees, times as fast", "", "", f"{ratio:.2f}"])
    return cells


def _factor(output: Path) -> list[str]:
    """Tokens of rows, tokens packed, and the first over the second."""
    tokens = read_report(output)["tokens"]
    packed = tokens["tokens_packed"] - tokens["filler"]
    whole = packed + tokens.get("shared", 0)
    return [f"{whole:,}", f"{packed:,}", f"{whole / packed:.2f}"]


def _texts(path: Path) -> Iterator[str]:
    return (json.loads(line)["text"] for line in lines(path))


def _pairs(chats: Path) -> Iterator[list[str]]:
    """The first message of each conversation and its answer."""
    with gzip.open(chats, "rt") if chats.suffix == ".gz" else chats.open() as file:
        for line in file:
            yield [str(message["content"]) for message in json.loads(line)["messages"][:2]]


def _groups(prompts: Iterator[list[str]] | Sequence[list[str]]) -> Iterator[dict[str, str]]:
    """Rows of eight answers to each prompt, with the words of its answer in random orders."""
    draw = random.Random(0)
    for prompt, *answer in prompts:
        words = " ".join(answer).split()
        for _ in range(GROUP):
            draw.shuffle(words)
            yield {"prompt": prompt, "text": f"{prompt}\n{' '.join(words)}"}


if __name__ == "__main__":
    main()
