"""Coverage-guided runs of the targets with atheris: `scripts/fuzz --minutes 60`.

Minutes are CPU time, split evenly over the targets. Each runs in a process of its own, which starts
again after a crash, a hang (20 s for one input) or more than 2 GB of memory. A finding is a kind of
error at a line of packprep; its first input is kept in build/fuzz/findings, and inputs that reached
new code in build/fuzz/corpus, from which the next run starts.
"""

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from random import Random

import click

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
NAMES = (
    *("json", "csv", "text", "gzip", "zstd", "parquet", "arrow", "tokens", "messages", "template"),
    *("options", "manifest", "report", "receipt", "shard", "export", "saved"),
)
_LARGEST = 1 << 14  # bytes of an input


def _compiled() -> list[str]:
    """Modules with functions that numba compiles, which it cannot if they count their branches."""
    files = [
        path for room in ("packprep", "loaders", "schemas") for path in ROOT.glob(f"{room}/**/*.py")
    ]
    plans = ROOT / "schemas" / "plans"
    compiled = [path for path in files if plans in path.parents or "numba" in path.read_text()]
    compiled += [path for path in files if "@kernel" in path.read_text()]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in compiled]
    return [name if name.startswith("packprep") else f"packprep.{name}" for name in names]


@click.command()
@click.option("--minutes", default=60.0, show_default=True, help="CPU minutes of all targets.")
@click.option("--target", "targets", multiple=True, type=click.Choice(NAMES), help="Only this one.")
@click.option("--seconds", default=0.0, hidden=True)
def main(minutes: float, targets: tuple[str, ...], seconds: float) -> None:
    """Fuzz what packprep reads. Prints a line for each target; exits 1 if there are findings."""
    if seconds:
        _fuzz(targets[0], seconds)
        return
    names = targets or NAMES
    click.echo("| target | CPU minutes | executions | findings |\n|---|---|---|---|")
    findings = [_run(name, 60 * minutes / len(names)) for name in names]
    sys.exit(any(findings))


def _run(name: str, seconds: float) -> int:
    """Number of findings of a target, after this much CPU time."""
    folder = BUILD / "findings" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    executions, used = 0, 0.0
    while used < seconds - 1:
        before = _cpu_of_children()
        command = ["--target", name, "--seconds", str(seconds - used)]
        with (folder.parent / f"{name}.log").open("ab") as log:
            subprocess.run(
                [sys.executable, __file__, *command],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                check=False,
            )
        used += _cpu_of_children() - before
        done = int((folder.parent / f"{name}.count").read_text())
        if not done and not any(folder.iterdir()):
            raise click.ClickException(f"{name} did not start; see {folder.parent / name}.log")
        executions += done
    found = len(list(folder.iterdir()))
    click.echo(f"| {name} | {used / 60:.1f} | {executions:,} | {found} |")
    return found


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _fuzz(name: str, seconds: float) -> None:
    """Fuzz one target until the process has used so much CPU time, or libFuzzer ends it."""
    import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

    findings, corpus = BUILD / "findings" / name, BUILD / "corpus" / name
    count = findings.with_suffix(".count")
    count.write_text("0")
    with atheris.instrument_imports(include=["packprep", "jinja2"], exclude=_compiled()):
        from tests.faults.fuzz import try_target
        from tests.faults.guided.inputs import INPUTS
        from tests.faults.guided.outputs import OUTPUTS
    target = (INPUTS | OUTPUTS)[name]
    # On a disk in memory, where there is one.
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    scratch = Path(tempfile.mkdtemp(prefix="packprep-fuzz-", dir=place))
    if not corpus.exists():
        corpus.mkdir(parents=True)
        (scratch / "seeds").mkdir()
        for number, seed in enumerate(target.seeds(scratch / "seeds")):
            (corpus / f"seed-{number}").write_bytes(seed)
    words = scratch / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    executions = 0

    def check(data: bytes) -> None:
        nonlocal executions
        executions += 1
        ends = time.process_time() > seconds
        if ends or executions % 100 == 0:
            count.write_text(str(executions))
        if ends:
            shutil.rmtree(scratch)
            os._exit(0)
        folder = scratch / "files"
        folder.mkdir()
        try:
            try_target(target, data, folder)
        except Exception as error:
            _keep(error, data, findings)
        finally:
            shutil.rmtree(folder)

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        draw = Random(seed)
        if target.mutate is None or draw.random() < 0.4:
            return bytes(atheris.Mutate(data, most))
        return target.mutate(data, draw)[:most]

    options = ["-rss_limit_mb=2048", "-timeout=20", f"-max_len={_LARGEST}", "-len_control=0"]
    options += [f"-dict={words}"] * bool(target.words)
    options += [f"-artifact_prefix={findings}/", str(corpus)]
    atheris.Setup([sys.argv[0], *options], check, custom_mutator=mutate)
    atheris.Fuzz()


def _keep(error: Exception, data: bytes, findings: Path) -> None:
    """Keep the first input of each kind of error at a line of packprep."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if str(ROOT) in frame.filename] or frames
    place = f"{Path(inside[-1].filename).stem}-{inside[-1].lineno}"
    path = findings / f"{type(error).__name__}-{place}"
    if not path.exists():
        path.write_bytes(data)
        traceback.print_exception(error)


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


if __name__ == "__main__":
    main()
