#!/usr/bin/env python3
"""Speed and tightness of every strategy on eight kinds of lengths.

With --peers, also of other packers.

\b
scripts/bench/packing.py                             all strategies, 10 thousand to 1 million
                                                     documents
scripts/bench/packing.py -n 10M -d a -d b4           10 million documents, two distributions
scripts/bench/packing.py -n 100k --peers --markdown  also other packers that pip can install, as a
                                                     Markdown table

Times are CPU seconds of one process (the median of five runs after a warm-up, so that a busy
machine matters less), from lengths in memory to the finished plan: order and offsets, packs in
seeded random order, documents ascending in each. Gap is packs over the best lower bound. Lost is
the share of tokens that a packer crops away.
"""

import gc
import importlib
import importlib.metadata
import importlib.util
import itertools
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import tables
from crop_to_fill import crop_to_fill
from numpy.typing import NDArray
from rich.console import Console

from packprep.packing.api import STRATEGIES, pack_lengths
from packprep.packing.kernels.fit import best_fit_patterns, first_fit_patterns
from packprep.packing.plan import PackPlan

Lengths = NDArray[np.int32]
Row = tuple[str, ...]
Peer = Callable[[Lengths, int], int]
PEER_SECONDS = 20.0  # a peer that would take longer is left out


def web_texts(documents: int) -> NDArray[np.int64]:
    """Lengths like those of web text, before they are cut for packs."""
    lengths = np.random.default_rng(0).lognormal(6.2, 1.1, documents)
    return np.maximum(1, lengths.astype(np.int64))


def distribution(name: str, documents: int) -> tuple[Lengths, int]:
    """Lengths, max_length.

    a instructions, b4, b8 web text cut at max_length, c long tail, d2, d3, d9 hard, e even.
    """
    random = np.random.default_rng(0)
    if name == "a":
        return np.clip(random.lognormal(np.log(250) - 0.405, 0.9, documents), 1, 2048).astype(
            np.int32
        ), 2048
    if name in ("b4", "b8"):
        capacity = 4096 if name == "b4" else 8192
        texts = web_texts(documents)
        pieces = -(-texts // capacity)
        lengths = np.full(pieces.sum(), capacity, np.int32)
        lengths[np.cumsum(pieces) - 1] = texts - (pieces - 1) * capacity
        return lengths[:documents].copy(), capacity
    if name == "c":
        return np.minimum(300 * (1 + random.pareto(1.1, documents)), 32768).astype(np.int32), 32768
    if name == "d2":
        return random.integers(2049, 2113, documents).astype(np.int32), 4096
    if name == "d3":
        return random.integers(1366, 1430, documents).astype(np.int32), 4096
    if name == "d9":  # whole blocks of Johnson's 11/9 instance only: their optimum is known
        block = [2048 + 16] * 6 + [1024 + 32] * 6 + [1024 + 16] * 6 + [1024 - 32] * 12
        return random.permutation(np.array(block * max(1, round(documents / 30)), np.int32)), 4096
    return random.integers(1, 2049, documents).astype(np.int32), 2048


DISTRIBUTIONS = ("a", "b4", "b8", "c", "d2", "d3", "d9", "e")


def cpu_seconds(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        gc.collect()
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return statistics.median(times)


def amount(text: str) -> int:
    return int(float(text.rstrip("kM")) * {"k": 1_000, "M": 1_000_000}.get(text[-1], 1))


def short(number: int) -> str:
    return next(
        (
            f"{number // unit}{sign}"
            for unit, sign in ((10**6, "M"), (10**3, "k"))
            if number >= unit
        ),
        str(number),
    )


def per_second(documents: int, seconds: float) -> str:
    rate = documents / max(seconds, 1e-9)
    return f"{rate / 1e6:,.1f} M" if rate >= 1e5 else f"{rate / 1e3:,.1f} k"


def figures(plan: PackPlan) -> Row:
    gap = f"{plan.gap} ({100 * plan.gap_share:.4f} %)"
    return (
        f"{plan.num_packs:,}",
        f"{100 * plan.utilization:.3f}",
        gap,
        f"{plan.bias:+.2f}",
        f"{plan.straggler(8, (0, 1)):.2f}",
        "0.00",
    )


def own_rows(name: str, documents: int, strategies: Iterable[str]) -> Iterable[Row]:
    lengths, capacity = distribution(name, documents)
    for strategy in strategies:
        if strategy == "balanced" and documents > 100_000:
            continue
        plan = pack_lengths(lengths, capacity, strategy)  # warm-up
        plan.check()
        seconds = cpu_seconds(partial(pack_lengths, lengths, capacity, strategy), 5)
        size = lengths.size
        yield (
            name,
            short(documents),
            strategy,
            f"{seconds * 1e3:,.2f}",
            per_second(size, seconds),
            *figures(plan),
        )
    if "best_fit" in strategies:
        plan = pack_lengths(lengths, capacity, "best_fit", order="balanced", cost=(0, 1))
        seconds = cpu_seconds(
            lambda: pack_lengths(lengths, capacity, "best_fit", order="balanced", cost=(0, 1)), 5
        )
        speed = per_second(lengths.size, seconds)
        yield (
            name,
            short(documents),
            "best_fit, balanced order",
            f"{seconds * 1e3:,.2f}",
            speed,
            *figures(plan),
        )


# --- other packers: each a function of (lengths, capacity) that gives packs of document numbers, or
# of lengths ---


def _load(package: str, module: str = "") -> Any:
    """A peer's module, Any to the type checker: it is installed only where --peers runs."""
    return importlib.import_module(module or package)


def _seqpacker() -> Peer:
    packer = _load("seqpacker").Packer

    def pack(lengths: Lengths, capacity: int) -> int:
        _, splits = packer(capacity=capacity, strategy="obfd").pack_flat(lengths.astype(np.int64))
        return len(splits) + 1  # as for numpy.split: the places between packs

    return pack


def _lightbinpack() -> Peer:
    module = _load("lightbinpack")
    return lambda lengths, capacity: len(module.obfd(lengths.tolist(), capacity))


def _binpacking() -> Peer:
    module = _load("binpacking")
    return lambda lengths, capacity: len(
        module.to_constant_volume(dict(enumerate(lengths.tolist())), capacity)
    )


def _trl() -> Peer:
    import pyarrow as pa
    from datasets import Dataset, disable_progress_bars

    module = _load("trl", "trl.data_utils")
    disable_progress_bars()

    def pack(lengths: Lengths, capacity: int) -> int:
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int32)
        zeros: Any = np.zeros(offsets[-1], np.int8)
        column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(zeros, pa.int8()))
        data = Dataset(pa.table({"input_ids": column})).with_format("arrow")
        return len(module.pack_dataset(data, capacity, "bfd", {"batch_size": len(lengths)}))

    return pack


def _axolotl() -> Peer:
    pack_group = _load("axolotl", "axolotl.utils.samplers.multipack").pack_group
    return lambda lengths, capacity: len(pack_group(lengths, 0, capacity, len(lengths), 200))


def _llamafactory() -> Peer:
    # The function needs nothing else of its package, which would import torch, transformers and
    # more.
    found = importlib.util.find_spec("llamafactory")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("llamafactory")
    file = Path(found.submodule_search_locations[0]) / "data" / "processor" / "processor_utils.py"
    spec = importlib.util.spec_from_file_location("processor_utils", file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(str(file))
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules["processor_utils"] = module
    spec.loader.exec_module(module)
    return lambda lengths, capacity: len(module.greedy_knapsack(lengths.tolist(), capacity))


PEERS: dict[str, tuple[str, Callable[[], Peer]]] = {
    "seqpacker obfd, pack_flat": ("seqpacker", _seqpacker),
    "lightbinpack obfd": ("lightbinpack", _lightbinpack),
    "binpacking": ("binpacking", _binpacking),
    "trl bfd (one window)": ("trl", _trl),
    "axolotl pack_group": ("axolotl", _axolotl),
    "llamafactory greedy_knapsack": ("llamafactory", _llamafactory),
}


def install(packages: Iterable[str], folder: str, console: Console) -> None:
    """Install each package with pip into a throw-away folder.

    Each by itself; the folder is put on the import path.
    """
    sys.path.append(folder)
    for package in packages:
        if importlib.util.find_spec(package) is None:
            extra = ["--no-deps"] if package in ("axolotl", "llamafactory", "trl") else []
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "-q",
                "--target",
                folder,
                *extra,
                package,
            ]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                console.print(f"{package} could not be installed here")
    importlib.invalidate_caches()


def forecast(pack: Peer, lengths: Lengths, capacity: int) -> float:
    """Seconds a peer will take.

    From the growth of its time from a hundredth to a tenth of the documents.
    """
    small = cpu_seconds(partial(pack, lengths[: lengths.size // 100], capacity), 1)
    if small > PEER_SECONDS / 10:
        return 100 * small
    tenth = cpu_seconds(partial(pack, lengths[: lengths.size // 10], capacity), 1)
    return tenth * max(1.0, tenth / max(small, 1e-3))


def peer_rows(
    name: str, documents: int, packers: dict[str, Peer], console: Console
) -> Iterable[Row]:
    lengths, capacity = distribution(name, documents)
    bound = pack_lengths(lengths, capacity).bound
    for peer, pack in packers.items():
        try:
            expected = forecast(pack, lengths, capacity)
            if expected > PEER_SECONDS:
                console.print(
                    f"{peer} would take {expected:,.0f} s for {short(documents)} of {name}: left "
                    "out"
                )
                continue
            packs = pack(lengths, capacity)
            seconds = cpu_seconds(partial(pack, lengths, capacity), 3 if expected < 2 else 1)
        except Exception as error:  # a peer's failure is a result, not the end of the comparison
            console.print(f"{peer} failed on {short(documents)} of {name}: {error!r}")
            continue
        utilization = 100 * int(lengths.sum(dtype=np.int64)) / (packs * capacity)
        gap = f"{packs - bound} ({100 * (packs - bound) / bound:.4f} %)"
        speed = per_second(lengths.size, seconds)
        yield (
            name,
            short(documents),
            peer,
            f"{seconds * 1e3:,.2f}",
            speed,
            f"{packs:,}",
            f"{utilization:.3f}",
            gap,
            "",
            "",
            "0.00",
        )


def cropping_row(name: str, documents: int) -> Row:
    """Row of nanochat's loader, which fills every pack and loses the tokens that it crops.

    It gets documents that are not cut: cropping is what it does instead.
    """
    cut, capacity = distribution(name, documents)
    lengths = web_texts(documents) if name in ("b4", "b8") else cut
    result = crop_to_fill(lengths, capacity)
    seconds = cpu_seconds(partial(crop_to_fill, lengths, capacity), 1)
    return (
        name,
        short(documents),
        "nanochat, crop to fill (twin)",
        f"{seconds * 1e3:,.2f}",
        per_second(lengths.size, seconds),
        f"{result.rows:,}",
        "100.000",
        "",
        "",
        "",
        f"{100 * result.lost / max(result.kept + result.lost, 1):.2f}",
    )


def plan_milliseconds(name: str) -> tuple[float, float]:
    """Milliseconds of the plan step alone (best_fit, first_fit).

    For 10 million documents' worth of counts.
    """
    lengths, capacity = distribution(name, 1_000_000)
    kinds, counts = np.unique(lengths, return_counts=True)
    arguments = (
        kinds[::-1].astype(np.int32),
        np.ones(kinds.size, np.int32),
        10 * counts[::-1].astype(np.int64),
    )
    times = []
    for plan in (best_fit_patterns, first_fit_patterns):
        plan(*arguments, capacity, 2**31 - 1)
        times.append(1e3 * cpu_seconds(partial(plan, *arguments, capacity, 2**31 - 1), 9))
    return times[0], times[1]


def cold_start(strategy: str, cache: str | None) -> float:
    """Wall seconds of a new Python that packs ten documents.

    With compiled kernels in the cache, or in an empty one.
    """
    code = f"from packprep import pack_lengths; pack_lengths([1] * 10, 8, {strategy!r})"
    environment = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    return time.perf_counter() - start


def resident_bytes(documents: int, strategy: str) -> float:
    """Peak resident bytes per document over those of the process and its input.

    In a process of its own.
    """
    code = f"""if True:
        import numpy as np
        from packprep import pack_lengths
        from packprep.support.memory import peak
        lengths = np.random.default_rng(0).integers(1, 512, {documents}, np.int32)
        pack_lengths(lengths[:100_000], 2048, {strategy!r})
        before = peak()
        plan = pack_lengths(lengths, 2048, {strategy!r})
        print((peak() - before) / lengths.size)
    """
    return float(
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout
    )


def show(rows: Iterable[Row], markdown: bool) -> None:
    """Markdown row by row as they are measured, or one table at the end."""
    titles = (
        "lengths",
        "documents",
        "packer",
        "CPU ms",
        "documents/s",
        "packs",
        "util %",
        "gap",
        "bias",
        "straggler 8",
        "lost %",
    )
    tables.show(titles, rows, markdown)


@click.command(help=__doc__)
@click.option(
    "-n",
    "--documents",
    multiple=True,
    default=("10k", "100k", "1M"),
    help="10k, 1M, ...; repeatable.",
)
@click.option(
    "-d",
    "--distribution",
    "names",
    multiple=True,
    default=DISTRIBUTIONS,
    type=click.Choice(DISTRIBUTIONS),
)
@click.option(
    "-s",
    "--strategy",
    "strategies",
    multiple=True,
    default=tuple(STRATEGIES),
    type=click.Choice(tuple(STRATEGIES)),
)
@click.option(
    "--peers", is_flag=True, help="Also other packers: installs them into a throw-away folder."
)
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
@click.option(
    "--startup/--no-startup", default=True, help="Also measure cold start, plan step and memory."
)
def main(
    documents: tuple[str, ...],
    names: tuple[str, ...],
    strategies: tuple[str, ...],
    peers: bool,
    markdown: bool,
    startup: bool,
) -> None:
    console = Console(
        width=max(140, shutil.get_terminal_size().columns), highlight=False, stderr=markdown
    )
    version = importlib.metadata.version("numba")
    click.echo(
        f"Python {platform.python_version()}, numba {version}, "
        f"{platform.processor() or platform.machine()}, 1 core\n"
    )
    packers: dict[str, Peer] = {}
    with tempfile.TemporaryDirectory() as folder:
        if peers:
            install(dict.fromkeys(package for package, _ in PEERS.values()), folder, console)
            for peer, (package, load) in PEERS.items():
                try:
                    packers[peer] = load()
                    packers[peer](np.array([3, 5, 4], np.int32), 8)
                except Exception as error:
                    packers.pop(peer, None)
                    console.print(f"{peer} ({package}) is left out: {error!r}")
        rows = (
            row
            for text, name in itertools.product(documents, names)
            for row in (
                *own_rows(name, amount(text), strategies),
                *peer_rows(name, amount(text), packers, console),
                *([cropping_row(name, amount(text))] if peers else []),
            )
        )
        show(rows, markdown)
        installed = dict.fromkeys(
            package for peer, (package, _) in PEERS.items() if peer in packers
        )
        if installed:
            versions = [f"{name} {importlib.metadata.version(name)}" for name in installed]
            click.echo(f"peers: {', '.join(versions)}")
    if startup:
        for name in names:
            click.echo(
                "plan step {}: best_fit {:.2f} ms, first_fit {:.2f} ms".format(
                    name, *plan_milliseconds(name)
                )
            )
        with tempfile.TemporaryDirectory() as empty:
            first, then = cold_start("best_fit", empty), cold_start("best_fit", empty)
        click.echo(
            f"cold start, wall: {first:.1f} s the first time (compiling), {then:.2f} s from then on"
        )
        most = max(amount(text) for text in documents)
        for strategy in ("best_fit", "stream"):
            click.echo(
                f"memory over the input, {strategy}: {resident_bytes(most, strategy):.0f} bytes "
                "per document"
            )


if __name__ == "__main__":
    main()
