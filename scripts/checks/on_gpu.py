"""Check on a GPU what the tests check on a CPU, and measure what packing saves there.

\b
python scripts/checks/on_gpu.py packed                          a few minutes on one GPU
python scripts/checks/on_gpu.py packed --device cpu --small     the same code on a CPU, to try it

PACKED is an output of packprep build. Prints figures of each part; exit code 1 if a check failed.

\b
isolation     logits and gradients of a pack against each document alone, by each attention
training      losses against the CPU, loss after many steps, a step packed and padded
loading       batches that arrive whole from reused pinned memory; time to load and to copy
transformers  verify_isolation of a small Llama, by each attention of transformers
"""

import io
import json
import statistics
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest.mock import patch

import click
import torch

from packprep.loaders import (
    PackedBatch,
    PackedLoader,
    to_hf,
    to_hf_4d,
    to_padded,
    varlen_attention,
    verify_isolation,
)

for folder in ("bench", "examples"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

import tables  # noqa: E402
import train_tiny  # noqa: E402
from attentions import Attention, attentions, many_documents, one_document  # noqa: E402

# Relative difference to each document alone on the CPU, in float32. In bfloat16 a pack may differ
# twice as much as the documents alone do in bfloat16.
TOLERANCE = 1e-4
show = partial(tables.show, markdown=True)


class Sizes(NamedTuple):
    """Of the model that is trained, and of its batches."""

    width: int = 1024
    layers: int = 8
    heads: int = 8
    kv_heads: int = 2
    packs: int = 8
    steps: int = 300
    repeats: int = 20
    most_padded: int = 1 << 16  # tokens of a padded batch


SMALL = Sizes(64, 2, 4, 2, packs=1, steps=6, repeats=2, most_padded=1 << 13)


class Run(NamedTuple):
    packed: Path
    device: str
    sizes: Sizes
    failed: list[str]

    def loader(self, packs: int, **settings: Any) -> PackedLoader:
        settings.setdefault("pin_memory", self.device == "cuda")
        return PackedLoader(self.packed, packs, labels="shifted", **settings)

    def model(self, *sizes: int) -> train_tiny.Tiny:
        torch.manual_seed(0)
        return train_tiny.Tiny(self.loader(1).shards.manifest.vocab_size, *sizes)

    def trained(self) -> tuple[train_tiny.Tiny, torch.optim.Optimizer]:
        model = self.model(*self.sizes[:4]).to(self.device)
        return model, torch.optim.AdamW(model.parameters(), lr=3e-4)

    def expect(self, name: str, holds: bool) -> str:
        if not holds:
            self.failed.append(name)
        return "ok" if holds else "FAILED"

    def now(self) -> float:
        """Milliseconds, after all work of the GPU is done."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() * 1e3


def documents(batch: PackedBatch) -> Iterable[PackedBatch]:
    """Each segment as a batch of its own."""
    for start, end in pairwise(batch.cu_seqlens.tolist()):
        yield PackedBatch(
            tokens=batch.tokens[start:end],
            position_ids=batch.position_ids[start:end],
            cu_seqlens=batch.cu_seqlens.new_tensor([0, end - start]),
            max_seqlen=end - start,
            labels=batch.labels[start:end],
            label_kind="shifted",
        )


def results(
    model: Any, batches: Iterable[PackedBatch], attention: Attention, dtype: Any
) -> list[torch.Tensor]:
    """Logits of all tokens and gradients of the sum of losses, on the CPU."""
    logits: list[torch.Tensor] = []
    hook = model.head.register_forward_hook(lambda *call: logits.append(call[2].detach().float()))
    model.zero_grad()
    short = torch.autocast(model.frequencies.device.type, torch.bfloat16, dtype == torch.bfloat16)
    with patch.object(train_tiny, "varlen_attention", attention):
        for batch in batches:
            with short:
                loss = model(batch)
            loss.backward()
    hook.remove()
    gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return [torch.cat(logits).cpu(), gradients.cpu()]


def isolation(run: Run) -> None:
    batch, rows = many_documents(run.loader(1)), list[Any]()
    model = run.model(64 * run.sizes.heads, run.sizes.layers // 2, *run.sizes[2:4])
    for block in model.blocks:  # attention that is far from even, so that a leak is large
        cast(train_tiny.Block, block).qkv.weight.data *= 4
    reference = partial(varlen_attention, backend="reference")
    expected = results(model, documents(batch), reference, torch.float32)
    model, batch = model.to(run.device), batch.to(run.device)
    for dtype in (torch.float32, torch.bfloat16):
        ways = attentions(batch, dtype) | {"no boundaries": one_document}
        calls = [("documents alone", documents(batch), reference)]
        calls += [(name, [batch], way) for name, way in ways.items()]
        limits = [TOLERANCE, TOLERANCE]
        for name, batches, way in calls:
            kind = str(dtype).removeprefix("torch.")
            try:
                got = results(model, batches, way, dtype)
            except Exception as error:  # of a kernel; the others still run
                run.expect(f"isolation {kind} {name}", False)
                rows.append([kind, name, "", "", f"FAILED: {error}".splitlines()[0][:200]])
                continue
            differences = [
                float((x - y).norm() / y.norm()) for x, y in zip(got, expected, strict=True)
            ]
            if name == "documents alone":
                limits = [max(TOLERANCE, 2 * difference) for difference in differences]
            equal = all(x <= limit for x, limit in zip(differences, limits, strict=True))
            result = run.expect(f"isolation {kind} {name}", equal != (name == "no boundaries"))
            rows.append([kind, name, *(f"{x:.1e}" for x in differences), result])
    print(f"{len(batch):,} tokens, {batch.num_segments} documents, longest {batch.max_seqlen}")
    show(("dtype", "attention", "logits differ by", "gradients differ by", "result"), rows)


def losses(run: Run, device: str, steps: int, packs: int, *sizes: int) -> tuple[list[float], str]:
    """Losses that scripts/examples/train_tiny.py prints, and its last line."""
    options = train_tiny.Options(run.packed, None, steps, packs, None, device, 0, 3e-4, *sizes)
    with redirect_stdout(io.StringIO()) as printed:
        train_tiny.train(options)
    *lines, last = printed.getvalue().splitlines()
    return [json.loads(line)["loss"] for line in lines], last


def training(run: Run) -> None:
    sizes = run.sizes
    here, there = (losses(run, device, 5, 1, 256, 4, 8, 2)[0] for device in (run.device, "cpu"))
    furthest = max(abs(x / y - 1) for x, y in zip(here, there, strict=True))
    print(f"losses {here}, on the CPU {there}: {run.expect('losses of the CPU', furthest < 0.01)}")
    many, last = losses(run, run.device, sizes.steps, sizes.packs, *sizes[:4])
    print(f"loss {many[0]} to {many[-1]}: {run.expect('loss falls', many[-1] < many[0])}; {last}")
    rows, trained = list[Any](), [run.trained(), run.trained()]
    for batch in run.loader(min(sizes.packs, 2)):
        whole = batch.to(run.device)
        batches = (whole, padded(whole))
        if len(batches[1]) > sizes.most_padded or len(rows) == 3 + sizes.repeats:
            continue
        items, means, times = torch.tensor(batch.num_items, device=run.device), [], [run.now()]
        for each, (model, optimizer) in zip(batches, trained, strict=True):
            means.append(train_tiny.train_step(model, optimizer, each, items))
            times.append(run.now())
        difference = float(abs(means[0] / means[1] - 1))
        rows.append([*map(len, batches), times[1] - times[0], times[2] - times[1], difference])
    tokens, rectangle, packed, filled, differences = zip(*rows[3:], strict=True)
    equal = run.expect("a padded step has the same loss", max(differences) < 0.01)
    print(
        f"{len(tokens)} steps of {statistics.mean(tokens):,.0f} tokens: packed "
        f"{statistics.median(packed):.1f} ms, padded {statistics.median(filled):.1f} ms; "
        f"{sum(filled) / sum(packed):.2f} times as long for {sum(rectangle) / sum(tokens):.2f} "
        f"times the tokens; losses differ by {max(differences):.1e}: {equal}"
    )


def padded(batch: PackedBatch) -> PackedBatch:
    """The documents padded to the longest, one after another: through the same attention."""
    fields = to_padded(batch, rows="segments")
    rows, longest = fields["input_ids"].shape
    return PackedBatch(
        tokens=fields["input_ids"].flatten(),
        position_ids=fields["position_ids"].flatten(),
        cu_seqlens=torch.arange(rows + 1, device=batch.tokens.device).int() * longest,
        max_seqlen=longest,
        labels=fields["labels"].flatten().roll(-1),
        label_kind="shifted",
    )


def sums(batch: PackedBatch) -> torch.Tensor:
    """Sums that change with any value of the batch."""
    places = torch.arange(len(batch), device=batch.tokens.device) + 1
    arrays = (batch.tokens, batch.labels, batch.position_ids)
    return torch.stack([(x * places).sum() for x in arrays] + [batch.cu_seqlens.sum()])


def loading(run: Run) -> None:
    packs, count = run.sizes.packs, min(run.sizes.steps, 100)
    plain, pinned = run.loader(packs, pin_memory=False), run.loader(packs)
    expected = [sums(batch.torch()) for batch in islice(plain, count)]
    work, found = torch.rand(4 * run.sizes.width, 4 * run.sizes.width, device=run.device), []
    for batch in islice(pinned, count):
        for _ in range(20 if run.device == "cuda" else 1):
            work = (work @ work).tanh()  # the copy waits for this, and the loader does not
        found.append(sums(batch.to(run.device, non_blocking=True)))
        del batch  # its memory may be reused
    whole = torch.equal(torch.stack(found).cpu(), torch.stack(expected))
    print(f"{len(found)} batches behind other work: {run.expect('batches arrive whole', whole)}")
    model, optimizer = run.trained()
    rows, warm, steps = list[Any](), 3, run.sizes.repeats
    for pin, prefetch in ((True, 2), (True, 0), (False, 2), (False, 0)):
        if pin and run.device != "cuda":
            continue
        batches = iter(run.loader(packs, pin_memory=pin, prefetch=prefetch))
        begun, waited, copies = 0.0, 0.0, []
        for step in range(warm + steps):
            if step == warm:
                begun, waited = run.now(), 0.0
            start = time.perf_counter()
            batch = next(batches)
            waited += (time.perf_counter() - start) * 1e3
            items = torch.tensor(batch.num_items, device=run.device)
            train_tiny.train_step(model, optimizer, batch.to(run.device, True), items)
        each, waited = (run.now() - begun) / steps, waited / steps
        for _ in range(steps):
            start = run.now()
            batch.to(run.device, True)
            copies.append(run.now() - start)
        copy = statistics.median(copies)
        figures = (f"{waited:.2f}", f"{copy:.2f}", f"{each:.1f}", f"{(waited + copy) / each:.1%}")
        rows.append([f"{pin}", f"{prefetch}", f"{3 * batch.tokens.nbytes / 2**20:.2f}", *figures])
    columns = ("pinned", "prefetch", "MiB", "wait, ms", "copy, ms", "step, ms", "share of step")
    show(columns, rows)


def transformers(run: Run) -> None:
    show(("attention", "dtype", "inputs", "result"), _by_transformers(run))


def _by_transformers(run: Run) -> Iterator[tuple[str, ...]]:
    """Rows of the table. FlexAttention is last: it compiles for the length of each document."""
    from transformers import LlamaConfig, LlamaForCausalLM

    batch = many_documents(run.loader(1)).to(run.device)
    vocabulary = run.loader(1).shards.manifest.vocab_size
    calls = [(name, call) for name in ("sdpa", "eager") for call in ("to_hf", "to_hf_4d")]
    calls += [("flash_attention_2", "to_hf"), ("flex_attention", "to_hf")]
    for name, call in calls:
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=0.2,
            attn_implementation=name,
        )
        for dtype in (torch.float32, torch.bfloat16):
            inputs: Any = (
                to_hf if call == "to_hf" else partial(to_hf_4d, config=config, dtype=dtype)
            )
            torch.manual_seed(0)
            try:
                model = LlamaForCausalLM(config).to(run.device, dtype)
                found = verify_isolation(model, batch, inputs=inputs)
                run.expect(f"{name} {dtype} {call}", found.isolated)
                result = str(found)
            except (ImportError, ValueError, NotImplementedError) as error:
                result = f"not run: {error}".splitlines()[0][:90]
            yield name, str(dtype).removeprefix("torch."), call, result


PARTS = {part.__name__: part for part in (isolation, training, loading, transformers)}


@click.command(help=__doc__)
@click.argument("packed", type=click.Path(exists=True, path_type=Path))
@click.option("--device", default="cuda", show_default=True, help="cuda or cpu")
@click.option("--small", is_flag=True, help="Use the smallest sizes.")
@click.option("--part", "parts", multiple=True, type=click.Choice([*PARTS]), default=[*PARTS])
def main(packed: Path, device: str, small: bool, parts: tuple[str, ...]) -> None:
    run = Run(packed, device, SMALL if small else Sizes(), [])
    card = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    print(f"torch {torch.__version__}, {card}")
    for part in parts:
        print(f"\n{part}", flush=True)
        start = run.now()
        try:
            PARTS[part](run)
        except Exception:  # the other parts still run
            traceback.print_exc(file=sys.stdout)
            run.failed.append(part)
        print(f"{(run.now() - start) / 1e3:.0f} s", flush=True)
    print(f"\nfailed: {', '.join(run.failed) or 'none'}")
    sys.exit(bool(run.failed))


if __name__ == "__main__":
    main()
