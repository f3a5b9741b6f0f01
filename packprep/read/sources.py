"""From names to sources: files with a digest, in a fixed order.

A path that exists is that path; #SPLIT after a folder chooses the files of a split. Files of a glob
or folder are sorted bytewise, so that document ids never depend on the disk.
"""

import glob
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import xxhash

from ..config.checks import entries_of
from ..config.grammar import count_of
from ..config.options import BuildConfig
from ..schemas.files import file_digest, is_url, saved_files
from ..support.errors import InputError, listed, redacted
from ..support.progress import Progress
from .reading import checked, rows_of, state_of
from .types import ENDINGS, Ids, Source, known_format

_SPLITS = {"train": "train", "training": "train", "test": "test", "validation": "validation"}
_SPLITS |= {"valid": "validation", "val": "validation", "dev": "validation", "eval": "test"}
_SPLITS |= {"testing": "test", "evaluation": "test"}
_INDEXES = {".idx": "bin", ".csv.gz": "npy", ".offsets.npy": "npy", ".ds.index": "ds"}
_MASKS = {".label_mask.npy": "npy", ".ds.loss": "ds"}
"""Endings of files beside token ids, and of those."""
_KNOWN = ", ".join(f".{ending}" for ending in ENDINGS)
_HUB = "hub:([^:@#]*):?([^@#]*)@?([^#]*)#?(.*)"


def resolve(
    config: BuildConfig,
    ids: Ids,
    scratch: Path,
    progress: Progress,
    digests: Callable[[Sequence[Source]], list[str]] | None,
) -> list[Source]:
    """All sources of a build, each with its digest and how its rows are read.

    ids: what all rows of ids have. scratch: folder for a copy of standard input. digests: of all
    sources; None to leave them empty. Raises InputError for a name that means nothing.
    """
    found, again, others = dict[str, Source](), 0, list[str]()
    output = config.output or config.store or ""
    try:
        for number, entry in enumerate(entries_of(config)):
            same = {
                "rows": rows_of(config, entry, ids),
                "group": config.group,
                "entry": number,
                "limit": count_of(entry.get("limit")),
                "mirror": str(scratch / "urls"),
            }
            for name in entry["path"]:
                for shown, paths in _files(name, output, scratch, others):
                    source = _source(redacted(shown), paths, same)
                    again += found.setdefault(os.path.realpath(paths[0]), source) is not source
        sources = [*found.values()]
        made = [""] * len(sources) if digests is None else digests(sources)
    except OSError as error:
        name = error.filename or "a source"
        raise InputError(f"{name} cannot be read: {error.strerror}") from None
    if again:
        progress.say(f"files that are named twice are read once: {again:,}")
    if others:
        progress.say(f"not read, as of no known format: {listed(others, 5)}")
    known = dict[int, dict[str, Any]]()
    for source in sources:  # by the first file of each entry that has rows
        known[source.entry] = known.get(source.entry) or checked(source, config)
    each = enumerate(zip(sources, made, strict=True))
    return [replace(s, number=at, digest=d, **known[s.entry]) for at, (s, d) in each]


def _files(
    name: str, output: str, scratch: Path, others: list[str]
) -> Sequence[tuple[str, Sequence[Path]]]:
    """The files that a name means: those of each source, after its name in messages.

    others: gets the names of files of a folder that are of no known format.
    """
    if name == "-":
        scratch.mkdir(parents=True, exist_ok=True)
        path = scratch / "stdin.jsonl"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        return [("standard input", [path])]
    if name.startswith("hub:"):
        return [(name, _from_hub(name))]
    if is_url(name):
        from .remote import files_of

        find = partial(_files, output="", scratch=scratch, others=others)
        return files_of(name, output, scratch / "urls", find)
    has_split = "#" in name and not os.path.lexists(name)
    place, _, split = name.rpartition("#") if has_split else (name, "", "")
    path = Path(place)
    if any((path / each).exists() for each in ("state.json", "dataset_dict.json")):
        saved, names = [path], [""]
        if (path / "dataset_dict.json").exists():
            saved = sorted(child for child in path.iterdir() if (child / "state.json").exists())
            names = [_SPLITS.get(child.name, child.name) for child in saved]
        saved = _of_split(saved, names, place, split)
        return [(str(folder), saved_files(folder)) for folder in saved]
    if path.is_dir() or (glob.has_magic(place) and not os.path.lexists(place)):
        files = _matching(place, output, others)
        files = _of_split(files, [split_name(file, place) for file in files], place, split)
    elif os.path.lexists(place):
        files = _of_split([path], [split_name(path, str(path.parent))], place, split)
    elif Path(f"{place}.idx").is_file():  # Megatron names both files by what they share
        files = [Path(f"{place}.idx")]
    else:
        raise InputError(f"there is no file {place}; check the path, or write hub:ORG/SET")
    return [(str(file), [file]) for file in dict.fromkeys(map(_tokens_of, files))]


def _matching(place: str, output: str, others: list[str]) -> list[Path]:
    """Files of a pattern, or of a known format in a folder, that have content."""
    is_folder = Path(place).is_dir()
    pattern = f"{glob.escape(place)}/**" if is_folder else place
    own = [Path(output + end).absolute() for end in ("", ".incomplete", ".replaced") if output]
    files = []
    for path in map(Path, sorted(glob.glob(pattern, recursive=True), key=os.fsencode)):
        is_own = any(path.absolute().is_relative_to(each) for each in own)
        if path.is_dir():
            next(path.iterdir(), None)  # glob passes over a folder that cannot be read
        elif not is_own and path.stat().st_size:
            if known_format(path.name)[0] or not is_folder:
                files.append(path)
            elif _tokens_of(path) == path:
                others.append(str(path.relative_to(place)))
    if not files:
        raise InputError(f"{place} has no file of a known format with content; expected {_KNOWN}")
    return files


def _of_split(files: Sequence[Path], splits: Sequence[str], place: str, asked: str) -> list[Path]:
    """The files of the split that is asked for; InputError if several are there and none is.

    splits: of each file, "" if its name says none, which is train if others say theirs.
    """
    splits = [each or "train" for each in splits] if any(splits) else splits
    named = sorted({*splits} - {""}, key=lambda split: (split != "train", split))
    wanted = {_SPLITS.get(word, word) for word in asked.split("+")} if asked else {*splits}
    chosen = [file for file, name in zip(files, splits, strict=True) if name in wanted]
    if not chosen or wanted - {*splits} or (not asked and len(named) > 1):
        raise InputError(
            f"{place} has files of splits {', '.join(named) or 'without a name'}; name one, such "
            f"as {place}#{(named or ['train'])[0]}, or all: {place}#{'+'.join(named)}"
        )
    return chosen


def split_name(path: Path, place: str) -> str:
    """Split that the name of a file or of its folders says; "" for none.

    place: the folder, or the pattern, that it is of. A word counts alone, or apart from the rest by
    other signs than letters.
    """
    root = Path(place) if Path(place).is_dir() else Path(re.split(r"[*?[]", place)[0] + "x").parent
    *folders, name = path.relative_to(root).parts
    words = re.findall("[A-Za-z]+", " ".join([name, *folders]).lower())
    return next((_SPLITS[word] for word in words if word in _SPLITS), "")


def _tokens_of(path: Path) -> Path:
    """The token file that a file is beside; others unchanged."""
    pairs = [pair for pair in (_INDEXES | _MASKS).items() if path.name.endswith(pair[0])]
    others = [path.with_name(f"{path.name.removesuffix(end)}.{tokens}") for end, tokens in pairs]
    return next((other for other in others if other.is_file()), path)


def _from_hub(name: str) -> list[Path]:
    """The Arrow files of hub:ORG/SET[:NAME][@REVISION][#SPLIT], in the cache of `datasets`."""
    import datasets

    dataset, subset, revision, split = re.findall(_HUB, name)[0]
    try:
        loaded: Any = datasets.load_dataset(
            dataset, subset or None, split=split or "train", revision=revision or None
        )
    except Exception as error:  # the loaders and the hub client raise many kinds
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"no dataset {name} came from the hub: {reason}; check the name") from None
    return [Path(file["filename"]) for file in loaded.cache_files]


def _source(name: str, paths: Sequence[Path], same: Mapping[str, Any]) -> Source:
    """A source without number and digest. same: fields that the sources of an entry share."""
    kind, compression = known_format(paths[0].name)
    if not kind or (compression and kind not in ("json", "csv", "tsv", "text")):
        raise InputError(
            f"{name} is of no known format; expected {_KNOWN}, of text also .gz and .zst: "
            "uncompress others"
        )
    if not all(path.is_file() for path in paths):
        raise InputError(f"{name} is not a regular file; to read a pipe use - for standard input")
    files = [*map(str, paths)]
    stem = files[0].rpartition(".")[0]
    if index := [stem + end for end, tokens in _INDEXES.items() if ENDINGS[tokens] == kind]:
        if not isinstance(same["rows"], Ids):
            raise InputError(f"{name} holds token ids, and rows are no ids; give --ids input_ids")
        files += [path for path in index if Path(path).is_file()][:1]
        if len(files) == 1:
            names = " or ".join(index)
            raise InputError(f"{name} has no {names} beside it, so its documents are not known")
        mask = [stem + end for end, tokens in _MASKS.items() if ENDINGS[tokens] == kind]
        files += [path for path in mask if Path(path).is_file()]
    state, is_here = state_of(files), not files[0].startswith(same["mirror"])
    size = sum(each for each, _ in state)
    if not size:
        raise InputError(f"{name} is empty; expected at least one document")
    return Source(
        name=name,
        paths=tuple(files),
        format=kind,
        compression=compression,
        bytes=size,
        state=state if is_here else (),
        **same,
    )


def content_digest(source: Source) -> str:
    """Digest of the content of a source."""
    digests = [file_digest(Path(path), xxhash.xxh3_128) for path in source.ready().paths]
    joined = " ".join(digests)
    return joined if len(digests) == 1 else xxhash.xxh3_128_hexdigest(joined.encode())


def content_digests(sources: Sequence[Source]) -> list[str]:
    """Digests of the content of sources, read side by side."""
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(content_digest, sources))
