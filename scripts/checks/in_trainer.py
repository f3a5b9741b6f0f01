"""Measure `packprep.dataset`: builds of processes that start at once, kills, second start, losses.

    PYTHONPATH=. python scripts/checks/in_trainer.py [--chats 100000] [--kills 10] [STEP...]

Steps: start, kill, second, losses. Prints a line for each bar, ok or BROKEN, and exits 1 if one is
broken. Takes about ten minutes; `second` writes 1 GB to the temporary folder.
"""

import hashlib
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from packprep.cli.sample_data import sample_files

CHILD = """
import json, sys, time
import datasets
import packprep
from packprep import in_trainer
in_trainer.BEAT, in_trainer.STALE = map(float, sys.argv[4:6])
builds, build = [], packprep.build
def counted(config, **options):
    builds.append(1)
    return build(config, **options)
packprep.build = counted
begun = time.perf_counter()
rows = packprep.dataset(sys.argv[1], sys.argv[2], cache_dir=sys.argv[3],
                        messages_column="messages", max_length=1024)
print(json.dumps([len(builds), len(rows), time.perf_counter() - begun]))
"""
STEPS = ("start", "kill", "second", "losses")
LONGEST = 900.0  # seconds after which a process hangs


def child(
    source: Path, tokenizer: Path, cache: Path, *, beat: float = 10, stale: float = 60
) -> Any:
    """A process that opens the packs of a source, and prints its builds, rows and seconds."""
    arguments = [source, tokenizer, cache, beat, stale]
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ}
    )


def results(processes: list[Any]) -> list[list[float]]:
    """What the processes print; AssertionError for one that failed or hangs."""
    texts = [process.communicate(timeout=LONGEST)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "a process failed"
    return [json.loads(text) for text in texts]


def digest(cache: Path) -> str:
    """Digest of the shards of the one output in a cache."""
    (folder,) = cache.glob("*/")
    files = sorted(folder.glob("*.arrow"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def start(folder: Path, data: Path, _chats: int, _kills: int) -> tuple[bool, str]:
    """8 processes on one file system, three times; 4 on each of two."""
    counts = []
    for number in range(3):
        cache = folder / f"start-{number}"
        run = [child(data / "chats.jsonl", data / "tokenizer", cache) for _ in range(8)]
        counts.append(sum(int(builds) for builds, _, _ in results(run)))
    caches = [folder / name for name in "ab"]
    run = [child(data / "chats.jsonl", data / "tokenizer", caches[n % 2]) for n in range(8)]
    two = sum(int(builds) for builds, _, _ in results(run))
    said = f"8 processes at once, three times: {counts} builds; 2 caches, 4 each: {two} builds"
    return counts == [1, 1, 1] and two == 2, said


def kill(folder: Path, data: Path, _chats: int, kills: int) -> tuple[bool, str]:
    """The builder killed at random moments, while three others wait."""
    source, tokenizer = data / "chats.jsonl", data / "tokenizer"
    whole = folder / "whole"
    begun = time.monotonic()
    results([child(source, tokenizer, whole)])
    seconds = time.monotonic() - begun
    expected, source_of_chance, longest, finished = digest(whole), random.Random(0), 0.0, 0
    for number in range(kills):
        cache = folder / f"kill-{number}"
        run = [child(source, tokenizer, cache, beat=1, stale=6) for _ in range(4)]
        while not (locks := [*cache.glob("*.lock.0")]):
            time.sleep(0.001)
        time.sleep(source_of_chance.random() * seconds * 0.6)
        try:
            builder = json.loads(locks[0].read_bytes())["process"]
        except (OSError, ValueError):
            builder = run[0].pid  # done, or not yet written: any process then
        killed = next(process for process in run if process.pid == builder)
        killed.kill()
        begun = time.monotonic()
        killed.communicate()
        results([process for process in run if process is not killed])
        longest = max(longest, time.monotonic() - begun)
        finished += digest(cache) == expected
    said = f"builder killed {kills} times: {finished} with the same bytes, the others done within "
    return finished == kills, f"{said}{longest:.0f} s"


def second(folder: Path, data: Path, chats: int, _kills: int) -> tuple[bool, str]:
    """A second start on 1 GB of chats."""
    rows = (data / "chats.jsonl").read_text().splitlines()
    chance, source, size = random.Random(0), folder / "large.jsonl", 0
    words = " ".join(rows).split()
    with source.open("w") as file:
        for number in range(chats):
            row = json.loads(rows[number % len(rows)])
            text = " ".join(chance.choices(words, k=1000))
            row["messages"].append({"role": "user", "content": text})
            size += file.write(json.dumps(row) + "\n")
    cache = folder / "second"
    ((_, _, first),) = results([child(source, data / "tokenizer", cache)])
    times = [results([child(source, data / "tokenizer", cache)])[0][2] for _ in range(3)]
    said = f"{size / 1e9:.2f} GB, {chats:,} chats: first start {first:.0f} s, then "
    shown = ", ".join(f"{seconds:.2f}" for seconds in times)
    return max(times) <= 1, f"{said}{shown} s after import datasets"


def losses(folder: Path, _data: Path, _chats: int, _kills: int) -> tuple[bool, str]:
    """One epoch of SFTTrainer in float64, with and without packing, the same 4 sequences a step."""
    import torch
    from datasets import Dataset

    import packprep
    from packprep.loaders import guard
    from tests.helpers.recipes import recorded, tokenizer
    from tests.helpers.torch_models import VOCABULARY, tiny_llama

    chance = random.Random(0)
    rows = []
    for _ in range(128):
        ids = chance.choices(range(2, VOCABULARY), k=chance.randrange(8, 65))
        prompt = chance.randrange(1, 6)
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    trl: Any = importlib.import_module("trl")
    source = folder / "rows.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    packed = packprep.dataset(
        source,
        cache_dir=folder / "losses",
        input_ids_column="input_ids",
        labels_column="labels",
        vocab_size=VOCABULARY,
        max_length=256,
        max_segments_per_pack=4,
        strategy="greedy",
        order="input",
    )

    def loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        """As transformers computes it, which rounds the logits to float32 first."""
        logits, targets = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits, targets)

    def trained(data: Any, **options: Any) -> list[float]:
        config = trl.SFTConfig(
            str(folder / "out"),
            max_length=None,
            train_sampling_strategy="sequential",
            num_train_epochs=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            **options,
        )
        model = guard(tiny_llama().double().train(), allow_unpacked=True)
        given = {"processing_class": tokenizer(), "compute_loss_func": loss}
        trainer = recorded(trl.SFTTrainer)(model, config, train_dataset=data, **given)
        trainer.train()
        return list(trainer.losses)

    ours = trained(packed, padding_free=True, per_device_train_batch_size=1)
    theirs = trained(Dataset.from_list(rows), per_device_train_batch_size=4)
    largest = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    said = f"losses of {len(ours)} steps with and without packing differ by {largest:.1e} at most"
    return largest <= 1e-6, said


@click.command(help=__doc__)
@click.argument("steps", nargs=-1, type=click.Choice(STEPS))
@click.option("--chats", default=100_000, help="Rows of the large source.")
@click.option("--kills", default=10, help="How many builds are killed.")
def main(steps: tuple[str, ...], chats: int, kills: int) -> None:
    holds = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, content in sample_files().items():
            (folder / "data" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "data" / path).write_bytes(content)
        for step in steps or STEPS:
            ok, said = globals()[step](folder, folder / "data", chats, kills)
            print(f"{'ok' if ok else 'BROKEN':<6}  {said}", flush=True)
            holds = holds and ok
    sys.exit(not holds)


if __name__ == "__main__":
    main()
