"""Packed data by one line of a training script: built once, and no process waits in a collective.

`dataset` and `shards` open the output of these sources, tokenizer and options in a cache folder.
If it is not there, one of the processes that share the folder builds it, and the others wait for
the file. Another one takes over if it dies: it changes its lock every BEAT seconds while it lives.

    CACHE/NAME           a finished output; NAME is a digest of the contents of the sources, the
                         tokenizer, the options and the format
    CACHE/TIMES.json     NAME, by a digest of sizes and times: a second start reads no source
    CACHE/SIZES.lock.N   the process that builds; N + 1 took over from N, which died
    CACHE/SIZES.build    the work of this process; the next one resumes what a killed one left

`python -m packprep.in_trainer [CACHE]` lists a cache.
"""

import errno
import glob
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import packprep

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from packprep.loaders import PackedShards

HF: dict[str, Any] = {"names": "hf"}
"""The option that names the columns as trainers do."""

BEAT = 10.0  # seconds between two changes of a lock
STALE = 60.0  # seconds without a change after which another process takes over
POLL = 0.5  # seconds between two looks of a process that waits
SAY = 10.0  # seconds between two lines of progress

_Source = str | os.PathLike[str] | Mapping[str, Any]
_Sources = _Source | Sequence[_Source]

# They decide how a build runs, not its bytes.
_RUNNING = {"engine", "executor", "keep_tokens", "max_memory", "num_proc", "store", "verify_engine"}
_TOKENIZER = "*tok* *.model tek*.json vocab* merges* config.json chat_* *_templates/*"  # its files


def dataset(sources: _Sources, tokenizer: Any = None, **options: Any) -> "Dataset | DatasetDict":
    """Return the packs of sources, with the columns that TRL and transformers train on.

    They are built by the first of all processes that share the cache, on whatever machine, and
    opened by the others and by later runs. With `holdout` they are a DatasetDict.

    sources: files, globs and folders, or hub:ORG/SET@REVISION. tokenizer: that of the trainer, its
    files, or NAME@REVISION on the hub. options: those of BuildConfig, and cache_dir: the folder
    that has the outputs of all calls; default: PACKPREP_CACHE, or packprep in the user's cache.

    Raises ConfigError, InputError or StoppedError, as `build`.
    """
    from datasets import load_from_disk

    return load_from_disk(str(prepared(sources, tokenizer, **HF | options)))


def shards(sources: _Sources, tokenizer: Any = None, **options: Any) -> "PackedShards":
    """Return the packs of sources for PackedLoader.

    options: see `dataset`; and split: "train" or "validation", needed with `holdout`.
    """
    from packprep.loaders import PackedShards

    split = options.pop("split", None)
    return PackedShards(prepared(sources, tokenizer, **options), split=split)


def prepared(
    sources: _Sources, tokenizer: Any = None, *, to: str | None = None, **options: Any
) -> Path:
    """Return the folder of the packs of sources, for trainers that take a path.

    to: a format of `packprep export` for it. options: see `dataset`.
    """
    cache = options.pop("cache_dir", None) or os.environ.get("PACKPREP_CACHE") or _user_cache()
    listed: Any = [sources] if isinstance(sources, str | os.PathLike | Mapping) else sources
    return _Call(listed, tokenizer, options, to).folder(Path(cache).expanduser().absolute())


class _Call:
    """Sources, tokenizer and options, and the files that they mean."""

    def __init__(
        self, sources: list[_Source], tokenizer: Any, options: dict[str, Any], to: str | None
    ) -> None:
        self.sources, self.tokenizer, self.options, self.to = sources, tokenizer, options, to
        self.config("output")  # a wrong option is an error at once, in all processes
        self.progress = _Progress()
        tables = [dict(s) if isinstance(s, Mapping) else {"path": s} for s in sources]
        found = [_source_files(table) for table in tables]
        used = [_option_files(value) for value in options.values()]
        files = chain(*found, *used, _tokenizer_files(tokenizer))
        self.times = {file: _times(file) for file in files}
        self.described = {
            "packprep": packprep.__version__,
            "sources": [
                table | {"path": len(files) or table["path"]}
                for table, files in zip(tables, found, strict=True)
            ],
            "tokenizer": _tokenizer_facts(tokenizer),
            "options": {key: value for key, value in options.items() if key not in _RUNNING},
            "to": to,
        }

    def config(self, output: str) -> packprep.BuildConfig:
        # overwrite: what a killed build left, whose sources were changed since
        place: Any = {"sources": self.sources, "output": output, "overwrite": True}
        return packprep.BuildConfig(tokenizer=self.tokenizer, **place, **self.options)

    def name(self, facts: Callable[[Path], object]) -> str:
        """Digest of the call. facts: about each file."""
        call = self.described | {"files": [facts(file) for file in self.times]}
        text = json.dumps(call, sort_keys=True, default=os.fspath)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def folder(self, cache: Path) -> Path:
        """The finished output; built if it is not in the cache."""
        pointer = cache / f"{self.name(lambda file: [str(file), *self.times[file]])}.json"
        target = cache / self.name(lambda file: [file.name, self.times[file][0]])

        def find() -> Path | None:
            with suppress(OSError, ValueError, KeyError):
                folder = cache / str(json.loads(pointer.read_bytes())["name"])
                return folder if folder.is_dir() else None
            return None

        def make(took_over: bool) -> Path:
            self.progress.wait("reading the sources")
            folder = cache / self.name(_contents)
            made = None if folder.is_dir() else self.build(target, took_over)
            changed = [file for file, times in self.times.items() if _times(file) != times]
            if made is not None and (changed or folder.is_dir()):
                shutil.rmtree(made)
            elif made is not None:
                made.rename(folder)
                self.progress.say(f"built {folder}; {_account(cache)[0]}")
            if changed:
                raise packprep.InputError(
                    f"{changed[0]} changed while it was read; start again when nothing writes to it"
                )
            with suppress(OSError):  # the pointer only saves time
                facts = {"name": folder.name, "sources": ", ".join(map(str, self.sources))}
                pointer.with_suffix(".new").write_text(json.dumps(facts))
                pointer.with_suffix(".new").replace(pointer)
            return folder

        try:
            return _once(target, find, make, self.progress)
        except _UnwritableError as error:
            folder = cache / self.name(_contents)
            if folder.is_dir():  # as in a cache that may only be read
                return folder
            raise packprep.ConfigError(str(error)) from None

    def build(self, target: Path, took_over: bool) -> Path:
        """Build beside the cache's outputs; return the folder."""
        made, exported = target.with_suffix(".build"), target.with_suffix(".export")
        started = time.monotonic()
        while True:
            try:
                packprep.build(self.config(str(made)), progress=self.progress)
                break
            except (packprep.StoppedError, OSError) as error:
                reason = getattr(error, "strerror", None) or error
                raise packprep.StoppedError(f"{reason}; {_account(target.parent)[0]}") from None
            except packprep.ConfigError:  # a dead process of another machine may hold it a while
                if not took_over or time.monotonic() - started > 2 * STALE:
                    raise
                time.sleep(POLL)
        if self.to is None:
            return made
        shutil.rmtree(exported, ignore_errors=True)
        command = ["packprep", "export", str(made), "--to", self.to, "-o", str(exported)]
        ran = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True)
        if ran.returncode:
            raise packprep.ConfigError(ran.stderr.strip())
        shutil.rmtree(made)
        return exported


# The files of a call, and what a name is made of


def _source_files(table: Mapping[str, Any]) -> list[Path]:
    """Local files of a source; none for a dataset on the hub."""
    paths, files = table.get("path", ()), list[Path]()
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        name = os.fspath(path)
        matches = [name] if Path(name).exists() else glob.glob(name, recursive=True)
        matches = matches or glob.glob(f"{glob.escape(name)}.*")  # Megatron's .bin and .idx
        here = [file for match in sorted(matches) for file in _inside(Path(match).absolute())]
        pinned = ("@" in name or table.get("revision")) and "://" not in name
        if not here and not pinned:
            raise packprep.ConfigError(
                f"source {name} is no local file or folder; expected one, or "
                "hub:ORG/SET@REVISION, so that a change is noticed; build others with packprep "
                "build, and open the output with load_from_disk"
            )
        files += here
    return files


def _inside(path: Path) -> Iterator[Path]:
    """The file, or those of a folder; not those that `map` of datasets left in it."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        left = file.match("cache-*.arrow") and file.with_name("state.json").exists()
        if file.is_file() and not left:
            yield file


def _option_files(value: object) -> Iterator[Path]:
    """The file that an option names, such as a chat template, or FILE.py:FUNCTION."""
    if isinstance(value, str | os.PathLike):
        for name in {os.fspath(value), os.fspath(value).rpartition(":")[0]}:
            if os.path.isfile(name):  # noqa: PTH113 - False for a long text
                yield Path(name).absolute()


def _tokenizer_files(tokenizer: Any) -> list[Path]:
    if not isinstance(tokenizer, str | os.PathLike) or not Path(tokenizer).exists():
        return []
    path = Path(tokenizer).absolute()
    folder = path if path.is_dir() else path.parent
    files = {path, *(file for pattern in _TOKENIZER.split() for file in folder.glob(pattern))}
    return sorted(file for file in files if file.is_file())


def _tokenizer_facts(tokenizer: Any) -> object:
    """What decides the ids of a loaded tokenizer, or the name of one on the hub."""
    if tokenizer is None or _tokenizer_files(tokenizer):
        return None
    if isinstance(tokenizer, str | os.PathLike) and "@" in os.fspath(tokenizer):
        return tokenizer
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(fast, "to_str"):
        raise packprep.ConfigError(
            f"the tokenizer is {tokenizer!r:.100}; expected a loaded fast tokenizer, its files, or "
            "NAME@REVISION of the hub, so that a change is noticed"
        )
    text = fast.to_str().partition('"added_tokens"')[2]  # before it: the padding of its last call
    special = {key: str(word) for key, word in getattr(tokenizer, "special_tokens_map", {}).items()}
    return [text, special, getattr(tokenizer, "chat_template", None)]


def _times(file: Path) -> tuple[int, int]:
    """Bytes and time of a file; zeros if it is gone."""
    with suppress(OSError):
        facts = file.stat()
        return facts.st_size, facts.st_mtime_ns
    return 0, 0


def _contents(file: Path) -> list[str]:
    """Name and digest of a file."""
    import xxhash

    try:
        with file.open("rb", buffering=0) as opened:
            return [file.name, hashlib.file_digest(opened, xxhash.xxh3_128).hexdigest()]
    except OSError as error:
        raise packprep.InputError(f"{file} cannot be read: {error.strerror}") from None


# One process at a time


class _UnwritableError(packprep.ConfigError):
    """The cache takes no lock."""


def _once(
    target: Path,
    find: Callable[[], Path | None],
    make: Callable[[bool], Path],
    progress: "_Progress",
) -> Path:
    """Return what find() finds; if nothing, one process calls make() and the others wait.

    make(True): after another process that died. A clock is never compared with one of another
    machine: a lock is dead if its content did not change for STALE seconds of this process.
    """
    seen, since = None, 0.0
    while (result := find()) is None:
        newest = 0
        while _lock(target, newest + 1).exists():
            newest += 1
        content = _read(_lock(target, newest))
        if (newest, content) != seen:
            seen, since = (newest, content), time.monotonic()
        died = content is not None and (_ended(content) or time.monotonic() - since >= STALE)
        if content is None or died:
            with _held(target, newest + 1 if died else 0, content, progress) as is_held:
                if is_held:
                    return find() or make(died)
        else:
            progress.waits(content)
        time.sleep(POLL)
    return result


def _lock(target: Path, number: int) -> Path:
    return target.with_suffix(f".lock.{number}")


def _read(lock: Path) -> bytes | None:
    """Content of a lock; None if there is none."""
    with suppress(OSError):
        return lock.read_bytes()
    return None


def _machine() -> str:
    """The machine since its start, and the space of its process numbers; "" if unknown."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _ended(content: bytes) -> bool:
    """True if the process of a lock ran here and does not any more."""
    try:
        holder = json.loads(content)
        if holder["machine"] == _machine() != "":
            os.kill(holder["process"], 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError):
        pass
    return False


@contextmanager
def _held(target: Path, number: int, before: bytes | None, progress: "_Progress") -> Iterator[bool]:
    """Create a lock and hold it; False if another process was faster.

    before: content of the lock with the number before it, whose process died.
    """
    lock, mine, released = _lock(target, number), os.urandom(16).hex(), threading.Event()
    facts = {"lock": mine, "host": os.uname().nodename, "machine": _machine()}

    def content(beats: int) -> bytes:
        now = {"process": os.getpid(), "beats": beats, "doing": progress.doing[:200]}
        return json.dumps(facts | now).encode().ljust(2000)  # of one length: never an empty file

    def is_mine() -> bool:
        return mine.encode() in (_read(lock) or b"")

    def beat() -> None:
        beats = 1
        while not released.wait(BEAT) and is_mine():
            with suppress(OSError), lock.open("r+b") as file:  # closed: other machines see it
                file.write(content(beats))
            beats += 1

    is_held = _created(lock, content(0))
    if is_held and number and _read(_lock(target, number - 1)) != before:
        lock.unlink()  # the other lives after all, or all is done
        is_held = False
    if not is_held:
        yield False
        return
    threading.Thread(target=beat, daemon=True).start()
    try:
        yield True
    finally:
        released.set()
        for each in range(number, -1, -1) if is_mine() else ():
            _lock(target, each).unlink(missing_ok=True)


def _created(lock: Path, content: bytes) -> bool:
    """Create a lock; False if it is there. ConfigError or StoppedError if that is impossible."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("xb") as file:
            file.write(content)
    except OSError as error:
        if isinstance(error, FileExistsError) and lock.exists():
            return False
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            lock.unlink(missing_ok=True)
            raise packprep.StoppedError(f"{error.strerror}; {_account(lock.parent)[0]}") from None
        raise _UnwritableError(
            f"the cache {lock.parent} cannot be written: {error.strerror}; choose another "
            "cache_dir or PACKPREP_CACHE"
        ) from None
    return True


class _Progress:
    """Lines on standard error: of the process that builds, and of one on each other machine."""

    def __init__(self) -> None:
        self.doing = "starting"
        self.said = self.began = time.monotonic()

    def say(self, line: str) -> None:
        self.said = time.monotonic()
        print(f"packprep: {line}", file=sys.stderr, flush=True)

    def wait(self, phase: str) -> None:
        self.doing = phase

    def advance(self, stage: str, done: float, total: float | None, unit: str) -> None:
        self.doing = f"{stage}: {done:,.0f}{f' of {total:,.0f}' if total else ''} {unit}"
        if time.monotonic() - self.said >= SAY:
            self.say(self.doing)

    def waits(self, content: bytes) -> None:
        """Say what the process of a lock does."""
        if os.environ.get("LOCAL_RANK", "0") == "0" and time.monotonic() - self.said >= SAY:
            who = "another process"
            with suppress(ValueError, KeyError):
                holder = json.loads(content)
                who = f"process {holder['process']} on {holder['host']}: {holder['doing']}"
            self.say(f"{time.monotonic() - self.began:.0f} s, waiting for {who}")


# The cache


def _user_cache() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("packprep", appauthor=False) / "in_trainer"


def _account(cache: Path) -> list[str]:
    """Lines about a cache: its size, then each output and each unfinished build."""
    sources: dict[str, str] = {}
    for pointer in cache.glob("*.json"):
        with suppress(OSError, ValueError, KeyError):
            facts = json.loads(pointer.read_bytes())
            sources[facts["name"]] = facts["sources"]
    sizes = {
        folder: sum(_times(file)[0] for file in folder.rglob("*") if file.is_file()) / 1e6
        for folder in sorted(cache.glob("*/"))
    }
    head = (
        f"the cache {cache} has {sum(sizes.values()):,.1f} MB in {len(sizes)} folders; "
        f"`python -m packprep.in_trainer {cache}` lists them, and rm -r deletes one"
    )
    lines = (f"{size:12,.1f} MB  {folder}" for folder, size in sizes.items())
    names = (sources.get(folder.name, "unfinished") for folder in sizes)
    return [head, *map("  ".join, zip(lines, names, strict=True))]


if __name__ == "__main__":
    print("\n".join(_account(Path(sys.argv[1]) if sys.argv[1:] else _user_cache())))
