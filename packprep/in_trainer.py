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
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import packprep

if TYPE_CHECKING:
    import datasets

    from packprep.loaders import PackedShards

HF: dict[str, Any] = {"names": "hf"}
"""The option that names the columns as trainers do."""

BEAT = 10.0  # seconds between two changes of a lock
STALE = 60.0  # seconds without a change after which another process takes over
POLL = 0.5  # seconds between two looks of a process that waits
SAY = 10.0  # seconds between two lines of progress

Paths = str | os.PathLike[str]
Source = Paths | Mapping[str, Any]

# They decide how a build runs, not its bytes.
_RUNNING = {"engine", "executor", "keep_tokens", "max_memory", "num_proc", "store", "verify_engine"}
_TAKEN = ("output", "overwrite", "append", "part")
_TOKENIZER_FILES = (
    "*token*.json",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "vocab*",
    "merges.txt",
    "config.json",
    "chat_template*",
    "additional_chat_templates/*",
)


def dataset(
    sources: Source | Sequence[Source],
    tokenizer: Any = None,
    *,
    cache_dir: Paths | None = None,
    **options: Any,
) -> "datasets.Dataset | datasets.DatasetDict":
    """Return the packs of sources, with the columns that TRL and transformers train on.

    They are built by the first of all processes that share the cache, on whatever machine, and
    opened by the others and by later runs. With `holdout` they are a DatasetDict.

    sources: files, globs and folders, or hub:ORG/SET@REVISION. tokenizer: that of the trainer, its
    files, or NAME@REVISION on the hub. options: those of BuildConfig. cache_dir: holds the outputs
    of all calls; default: PACKPREP_CACHE, or packprep in the user's cache.

    Raises ConfigError, InputError or StoppedError, as `build`.
    """
    from datasets import load_from_disk

    folder = prepared(sources, tokenizer, cache_dir=cache_dir, **HF | options)
    return load_from_disk(str(folder))


def shards(
    sources: Source | Sequence[Source],
    tokenizer: Any = None,
    *,
    cache_dir: Paths | None = None,
    split: str | None = None,
    **options: Any,
) -> "PackedShards":
    """Return the packs of sources for PackedLoader; see `dataset`.

    split: "train" or "validation", needed with `holdout`.
    """
    from packprep.loaders import PackedShards

    return PackedShards(prepared(sources, tokenizer, cache_dir=cache_dir, **options), split=split)


def prepared(
    sources: Source | Sequence[Source],
    tokenizer: Any = None,
    *,
    cache_dir: Paths | None = None,
    to: str | None = None,
    **options: Any,
) -> Path:
    """Return the folder of the packs of sources, for trainers that take a path; see `dataset`.

    to: a format of `packprep export` that the folder gets.
    """
    if taken := [name for name in _TAKEN if name in options]:
        raise packprep.ConfigError(
            f"{taken[0]} is decided by the cache here; leave it out, or call packprep.build"
        )
    cache = Path(cache_dir or os.environ.get("PACKPREP_CACHE") or _user_cache())
    listed = [sources] if isinstance(sources, str | os.PathLike | Mapping) else [*sources]
    return _Call(listed, tokenizer, options, to, cache.expanduser().absolute()).folder()


@dataclass
class _Call:
    """What is asked for, and the cache that has it or gets it."""

    sources: list[Source]
    tokenizer: Any
    options: Mapping[str, Any]
    to: str | None
    cache: Path

    def __post_init__(self) -> None:
        self.config(self.cache / "output")  # a wrong option is an error at once, in all processes
        self.found = [[_files(name, source) for name in _names(source)] for source in self.sources]
        files = [file for source in self.found for name in source for file in name]
        files += [path for value in self.options.values() if (path := _file_in(value))]
        self.times = {file: _times(file) for file in [*files, *_tokenizer_files(self.tokenizer)]}
        self.sizes = self.name(lambda file: [file.name, self.times[file][1]])
        self.progress = _Progress()

    def config(self, output: Path) -> packprep.BuildConfig:
        return packprep.BuildConfig(
            sources=self.sources,
            tokenizer=self.tokenizer,
            output=str(output),
            overwrite=True,  # what a build left that was killed, if its sources changed since
            **self.options,
        )

    def name(self, facts: Callable[[Path], object]) -> str:
        """Digest of the call. facts: about each file."""
        call = {
            "version": packprep.__version__,
            "sources": [
                [dict(source) | {"path": None} if isinstance(source, Mapping) else None]
                + [len(files) or name for name, files in zip(_names(source), found, strict=True)]
                for source, found in zip(self.sources, self.found, strict=True)
            ],
            "tokenizer": _tokenizer_text(self.tokenizer),
            "options": {key: value for key, value in self.options.items() if key not in _RUNNING},
            "to": self.to,
            "files": [facts(file) for file in self.times],
        }
        text = json.dumps(call, sort_keys=True, default=_as_json)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def folder(self) -> Path:
        """The finished output; built if it is not in the cache."""
        pointer = self.cache / f"{self.name(lambda file: self.times[file])}.json"

        def find() -> Path | None:
            try:
                folder = self.cache / str(json.loads(pointer.read_bytes())["name"])
            except (OSError, ValueError, KeyError):
                return None
            return folder if folder.is_dir() else None

        def make(took_over: bool) -> Path:
            self.progress.wait("reading the sources")
            folder = self.cache / self.name(_contents)
            if not folder.is_dir():
                self.build(folder, took_over)
            self.check_unchanged()
            with suppress(OSError):  # it saves time, no more
                new = pointer.with_suffix(f".{uuid.uuid4().hex}")
                new.write_text(json.dumps({"name": folder.name, "sources": self.words()}))
                new.replace(pointer)
            return folder

        try:
            return _once(self.cache / self.sizes, find, make, self.progress)
        except _UnwritableError:
            folder = self.cache / self.name(_contents)
            if folder.is_dir():  # as in a cache that may only be read
                return folder
            raise

    def build(self, folder: Path, took_over: bool) -> None:
        """Build beside the folder, which then appears by one rename."""
        started, made = time.monotonic(), self.cache / f"{self.sizes}.build"
        while True:
            try:
                packprep.build(self.config(made), progress=self.progress)
                break
            except packprep.StoppedError:
                self.progress.print(_account(self.cache)[0])
                raise
            except packprep.ConfigError:  # a dead process of another machine may hold it a while
                if not took_over or time.monotonic() - started > 2 * STALE:
                    raise
                time.sleep(POLL)
        if self.to:
            made = _exported(made, self.to)
        try:
            self.check_unchanged()
        except packprep.InputError:
            shutil.rmtree(made)
            raise
        made.rename(folder)
        self.progress.print(f"built {folder} in {time.monotonic() - started:.1f} s")
        self.progress.print(_account(self.cache)[0])

    def check_unchanged(self) -> None:
        for file, times in self.times.items():
            if _times(file) != times:
                raise packprep.InputError(
                    f"{file} changed while it was read; start again when nothing writes to it"
                )

    def words(self) -> str:
        return ", ".join(str(name) for source in self.sources for name in _names(source))


def _exported(made: Path, to: str) -> Path:
    """The output in another format, which takes its place."""
    exported = made.with_suffix(".export")
    shutil.rmtree(exported, ignore_errors=True)
    command = ["packprep", "export", str(made), "--to", to, "-o", str(exported)]
    ran = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise packprep.ConfigError(ran.stderr.strip())
    shutil.rmtree(made)
    return exported


# What a name is made of


def _names(source: Source) -> list[str]:
    """Paths and globs of a source."""
    paths = source.get("path", ()) if isinstance(source, Mapping) else source
    each = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [os.fspath(path) for path in each]


def _files(name: str, source: Source) -> list[Path]:
    """Local files of a path or glob; none for a dataset on the hub."""
    matches = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True))
    matches = matches or sorted(glob.glob(f"{glob.escape(name)}.*"))  # a .bin and its .idx
    files = [file for match in matches for file in _inside(Path(match).absolute())]
    pinned = "@" in name or (isinstance(source, Mapping) and source.get("revision"))
    if files or (pinned and "://" not in name):
        return files
    raise packprep.ConfigError(
        f"source {name} is no local file or folder; expected one, or hub:ORG/SET@REVISION, so that "
        "a source that changes is noticed; build others with packprep build, and open the output "
        "with load_from_disk"
    )


def _inside(path: Path) -> Iterator[Path]:
    """The file, or those of a folder; not those that `map` of datasets left in it."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        left = file.match("cache-*.arrow") and file.with_name("state.json").exists()
        if file.is_file() and not left:
            yield file


def _file_in(value: object) -> Path | None:
    """The file that an option names, such as a chat template, or FILE.py:FUNCTION."""
    if isinstance(value, str | os.PathLike):
        for name in (os.fspath(value), os.fspath(value).rpartition(":")[0]):
            if os.path.isfile(name):  # noqa: PTH113 - False for a long text
                return Path(name).absolute()
    return None


def _tokenizer_files(tokenizer: Any) -> list[Path]:
    if not isinstance(tokenizer, str | os.PathLike):
        return []
    path = Path(tokenizer).absolute()
    if path.exists():
        folder = path if path.is_dir() else path.parent
        beside = {file for pattern in _TOKENIZER_FILES for file in folder.glob(pattern)}
        return [file for file in sorted({path} | beside) if file.is_file()]
    if "@" in os.fspath(tokenizer):
        return []
    raise packprep.ConfigError(
        f"tokenizer {tokenizer} is no local file or folder; expected one, or the loaded tokenizer, "
        "or NAME@REVISION of the hub, so that one that changes is noticed"
    )


def _tokenizer_text(tokenizer: Any) -> object:
    """What decides the ids of a loaded tokenizer; the name of one on the hub; None for files."""
    if tokenizer is None or isinstance(tokenizer, str | os.PathLike):
        return None if _tokenizer_files(tokenizer) else tokenizer
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(fast, "to_str"):
        raise packprep.ConfigError(
            f"the tokenizer is a {type(tokenizer).__name__}; expected a fast tokenizer or a path"
        )
    _, _, text = fast.to_str().partition('"added_tokens"')  # before: padding of its last call
    named = {key: str(text) for key, text in getattr(tokenizer, "special_tokens_map", {}).items()}
    return [text, named, getattr(tokenizer, "chat_template", None)]


def _times(file: Path) -> list[Any]:
    """Path, bytes and time of a file; zeros if it is gone."""
    try:
        facts = file.stat()
    except OSError:
        return [str(file), 0, 0]
    return [str(file), facts.st_size, facts.st_mtime_ns]


def _contents(file: Path) -> list[str]:
    """Name and digest of a file."""
    import xxhash

    try:
        with file.open("rb", buffering=0) as opened:
            return [file.name, hashlib.file_digest(opened, xxhash.xxh3_128).hexdigest()]
    except OSError as error:
        raise packprep.InputError(f"{file} cannot be read: {error.strerror}") from None


def _as_json(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise packprep.ConfigError(
        f"an option is a {type(value).__name__}; expected text, numbers, or lists of them"
    )


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
    return target.with_name(f"{target.name}.lock.{number}")


def _read(lock: Path) -> bytes | None:
    """Content of a lock; None if there is none."""
    try:
        return lock.read_bytes()
    except OSError:
        return None


def _machine() -> str:
    """The machine since its start, and the space of its process numbers; "" if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _ended(content: bytes) -> bool:
    """True if the process of a lock ran here and does not any more."""
    try:
        holder = json.loads(content)
        if not _machine() or holder["machine"] != _machine():
            return False
        os.kill(holder["process"], 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, KeyError):
        pass
    return False


@contextmanager
def _held(target: Path, number: int, dead: bytes | None, progress: "_Progress") -> Iterator[bool]:
    """Hold a lock that is created now; False if another process has it.

    dead: content of the lock before it, of a process that died.
    """
    lock, mine = _lock(target, number), uuid.uuid4().hex
    facts = {"lock": mine, "host": socket.gethostname(), "process": os.getpid()}
    facts |= {"machine": _machine()}

    def content(beat: int) -> bytes:
        text = json.dumps({**facts, "beat": beat, "doing": progress.doing[:200]})
        return text.encode().ljust(1000)  # of one length: no beat has to empty the file first

    def beat() -> None:
        for number in count(1):
            if released.wait(BEAT) or mine.encode() not in (_read(lock) or b""):
                return
            # Opened and closed each time, so that other machines see it.
            with suppress(OSError), lock.open("r+b") as file:
                file.write(content(number))

    if not _created(lock, content(0)):
        yield False
        return
    if dead is not None and _read(_lock(target, number - 1)) != dead:
        lock.unlink()  # it lives, or its work was taken over and done
        yield False
        return
    released = threading.Event()
    threading.Thread(target=beat, daemon=True).start()
    try:
        yield True
    finally:
        released.set()
        if mine.encode() in (_read(lock) or b""):
            for each in range(number, -1, -1):
                with suppress(OSError):
                    _lock(target, each).unlink()


def _created(lock: Path, content: bytes) -> bool:
    """Create a lock; False if it is there. ConfigError or StoppedError if it cannot be created."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("xb") as file:
            file.write(content)
    except OSError as error:
        if isinstance(error, FileExistsError) and lock.exists():
            return False
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            with suppress(OSError):
                lock.unlink()
            raise packprep.StoppedError(
                f"{lock} cannot be written: {error.strerror}; {_account(lock.parent)[0]}"
            ) from None
        raise _UnwritableError(
            f"the cache {lock.parent} cannot be written: {error.strerror}; choose another "
            "cache_dir or PACKPREP_CACHE"
        ) from None
    return True


class _Progress:
    """Lines on standard error: of the process that builds, and of one on each other machine."""

    def __init__(self) -> None:
        self.doing = "starting"
        self._said = self._began = time.monotonic()

    def print(self, line: str) -> None:
        self._said = time.monotonic()
        print(f"packprep: {line}", file=sys.stderr, flush=True)

    def waits(self, content: bytes) -> None:
        """Say what the process of a lock does."""
        if os.environ.get("LOCAL_RANK", "0") != "0" or time.monotonic() - self._said < SAY:
            return
        try:
            holder = json.loads(content)
            who = f"process {holder['process']} on {holder['host']}: {holder['doing']}"
        except (ValueError, KeyError):
            who = "another process"
        self.print(f"{time.monotonic() - self._began:.0f} s, waiting for {who}")

    # What `packprep.build` calls.

    def say(self, line: str) -> None:
        self.print(line)

    def wait(self, phase: str) -> None:
        self.doing = phase

    def advance(self, stage: str, done: float, total: float | None, unit: str) -> None:
        self.doing = f"{stage}: {done:,.0f}{f' of {total:,.0f}' if total else ''} {unit}"
        if time.monotonic() - self._said >= SAY:
            self.print(self.doing)


# The cache


def _user_cache() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("packprep", appauthor=False) / "in_trainer"


def _account(cache: Path) -> list[str]:
    """Lines about a cache: its size, then each output and each unfinished build."""
    sources: dict[str, str] = {}
    for pointer in sorted(cache.glob("*.json")):
        with suppress(OSError, ValueError, KeyError):
            loaded = json.loads(pointer.read_bytes())
            sources[loaded["name"]] = loaded["sources"]
    sizes = {
        folder: sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())
        for folder in sorted(cache.glob("*/"))
    }
    head = (
        f"the cache {cache} has {sum(sizes.values()) / 1e6:,.1f} MB in {len(sizes)} folders; "
        f"`{Path(sys.executable).name} -m packprep.in_trainer {cache}` lists them, and rm -r "
        "deletes one"
    )
    return [head] + [
        f"{size / 1e6:12,.1f} MB  {folder}  {sources.get(folder.name, 'unfinished')}"
        for folder, size in sizes.items()
    ]


if __name__ == "__main__":
    print("\n".join(_account(Path(sys.argv[1]) if sys.argv[1:] else _user_cache())))
