"""XTuner's preset packs: which samples of which files are a pack.

    paths.json       names of the files of samples
    samples.npy      int64 [segments, 6]: file, sample, first and last character (-1 for a sample
                     that is not long text), first token, end token
    boundaries.npy   int64 [packs + 1]: rows of samples.npy before each pack, and all of them

XTuner reports the first fault when training begins, and does not look for empty packs or for
tokens that are in two packs.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.inspect.foreign.preset_samples import check_sample_files
from packprep.inspect.foreign.result import ForeignResult
from packprep.schemas.findings import Finding
from packprep.support.arrays import NPY_ERRORS, Int64

FILES = ("boundaries.npy", "samples.npy", "paths.json")
_COLUMNS = 6
_UNREADABLE: tuple[type[Exception], ...] = (OSError, *NPY_ERRORS)


def is_preset(folder: Path) -> bool:
    """True if a folder has at least two of the three files."""
    return sum((folder / name).is_file() for name in FILES) >= 2


def check_preset_packs(folder: Path, name: str, result: ForeignResult) -> None:
    """Check a folder of preset packs. name: of the folder, with a slash, or empty."""

    def fault(file: str, what: str, kind: str = "file") -> None:
        result.findings.add(Finding(kind=kind, file=name + file, what=what))

    missing = [file for file in FILES if not (folder / file).is_file()]
    for file in missing:
        fault(file, "it is missing; preset packs have boundaries.npy, samples.npy and paths.json")
    for file in set(FILES).difference(missing):
        result.count_file(folder / file)
    paths = _paths(folder / "paths.json", fault) if "paths.json" not in missing else None
    boundaries = _array(folder / "boundaries.npy", 1, fault) if FILES[0] not in missing else None
    samples = _array(folder / "samples.npy", 2, fault) if FILES[1] not in missing else None
    result.say("lengths of packs: pack_max_length is not in the files")
    if samples is None:
        return
    ends = _check_boundaries(boundaries, len(samples), name, result)
    _check_samples(samples, ends, None if paths is None else len(paths), name, result)
    result.segments += len(samples)
    result.packs += 0 if ends is None else len(ends) - 1
    result.tokens += int((samples[:, 5] - samples[:, 4]).clip(0).sum())
    if paths is not None:
        check_sample_files(folder, name, paths, samples, result)


def _paths(path: Path, fault: Callable[..., None]) -> list[str] | None:
    try:
        paths = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        paths = None
    if not isinstance(paths, list) or not all(isinstance(name, str) and name for name in paths):
        fault("paths.json", "it is no JSON list of file names", "paths")
        return None
    for number, name in enumerate(paths):
        if name in paths[:number]:
            fault("paths.json", f"it names {name} twice, as {paths.index(name)} and {number}")
    return paths


def _array(path: Path, dimensions: int, fault: Callable[..., None]) -> Int64 | None:
    """An array of whole numbers; None after a fault."""
    try:
        # Checks the header against the size of the file; `load` would allocate what it claims.
        np.lib.format.open_memmap(path, mode="r")
        array: NDArray[Any] = np.load(path, allow_pickle=False)
    except _UNREADABLE as error:
        text = " ".join(str(error).split())[:150]
        fault(path.name, f"it cannot be read as an array of NumPy: {text}", "damaged")
        return None
    wide = dimensions == 1 or array.shape[1:] == (_COLUMNS,)
    if array.ndim != dimensions or not wide or array.dtype.kind not in "iu":
        shape = "(packs + 1,)" if dimensions == 1 else f"(segments, {_COLUMNS})"
        fault(
            path.name,
            f"it holds {array.dtype} of shape {array.shape}; expected int64 of shape {shape}",
            "array",
        )
        return None
    return array.astype(np.int64)


def _check_boundaries(
    boundaries: Int64 | None, rows: int, name: str, result: ForeignResult
) -> Int64 | None:
    """The boundaries, or None if they do not cover the rows of samples.npy."""
    if boundaries is None:
        return None
    file, before = f"{name}boundaries.npy", len(result.findings)

    def fault(what: str, pack: int | None = None) -> None:
        finding = Finding(kind="boundaries", file=file, pack=pack, what=what)
        result.findings.add(finding)

    if not len(boundaries):
        fault("it is empty; expected 0 and the end of each pack")
        return None
    if boundaries[0] != 0:
        fault(f"it begins with {boundaries[0]:,}; expected 0")
    if boundaries[-1] != rows:
        fault(f"it ends with {boundaries[-1]:,}; expected {rows:,}, the rows of samples.npy")
    sizes = np.diff(boundaries)
    result.findings.many(
        "boundaries",
        np.flatnonzero(sizes <= 0),
        lambda pack: Finding(
            kind="boundaries",
            file=file,
            pack=pack,
            what=f"it has the rows {boundaries[pack]:,} to {boundaries[pack + 1]:,} of "
            "samples.npy; expected at least one row",
        ),
    )
    return boundaries if len(result.findings) == before else None


def _check_samples(
    samples: Int64, ends: Int64 | None, paths: int | None, name: str, result: ForeignResult
) -> None:
    file, sample, char, char_end, first, end = samples.T

    def place(row: int) -> dict[str, Any]:
        if ends is None:
            return {"segment": row}  # of the file
        pack = int(np.searchsorted(ends, row, side="right")) - 1
        return {"pack": pack, "segment": row - int(ends[pack])}

    def report(kind: str, wrong: NDArray[np.bool_], make: Callable[[int], str]) -> None:
        result.findings.many(
            kind,
            np.flatnonzero(wrong),
            lambda row: Finding(kind=kind, file=f"{name}samples.npy", what=make(row), **place(row)),
        )

    if paths is not None:
        report(
            "path",
            (file < 0) | (file >= paths),
            lambda row: (
                f"it is of file {file[row]}, and paths.json has {paths:,}; expected 0 to "
                f"{paths - 1}"
            ),
        )
    report("sample", sample < 0, lambda row: f"its sample is {sample[row]}; expected 0 or more")
    report(
        "tokens",
        first < 0,
        lambda row: f"its first token is {first[row]}; expected 0 or more",
    )
    report(
        "tokens",
        (end <= first) & (first >= 0),
        lambda row: f"it has tokens {first[row]:,} to {end[row]:,}; expected at least one",
    )
    plain = (char == -1) & (char_end == -1)
    report(
        "characters",
        ~plain & ((char < 0) | (char_end <= char)),
        lambda row: (
            f"it has characters {char[row]} to {char_end[row]}; expected -1 and -1, or at least "
            "one character"
        ),
    )
    _check_shared(samples, report)


def _check_shared(samples: Int64, report: Any) -> None:
    """Report segments that share some tokens, but not all, with another of the same sample.

    Equal ones are a sample that is repeated.
    """
    file, sample, char, _, first, end = samples.T
    order = np.lexsort((end, first, char, sample, file))
    same = np.ones(max(len(order) - 1, 0), np.bool_)
    for key in (file, sample, char):
        same &= key[order[1:]] == key[order[:-1]]
    before, after = order[:-1], order[1:]
    equal = (first[before] == first[after]) & (end[before] == end[after])
    shared = same & ~equal & (first[after] < end[before])
    other = np.zeros(len(samples), np.int64)
    other[after[shared]] = before[shared]
    wrong = np.zeros(len(samples), np.bool_)
    wrong[after[shared]] = True
    report(
        "shared tokens",
        wrong,
        lambda row: (
            f"it has tokens {first[row]:,} to {end[row]:,} of sample {sample[row]:,}, and row "
            f"{other[row]:,} of samples.npy has {first[other[row]]:,} to {end[other[row]]:,}; "
            "expected no tokens in both"
        ),
    )
