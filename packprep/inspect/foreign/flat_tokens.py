"""Token files of Megatron, OLMo, NumPy and datatrove: index, ids and masks.

The faults of an index are those that stop a build, see `packprep.sources.token_files`. Here all of
them are reported, and after a sound index every id is compared with the vocabulary.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packprep.inspect.foreign.result import ForeignResult
from packprep.schemas.errors import FormatError
from packprep.schemas.findings import Finding
from packprep.sources.token_files.datatrove import datatrove_layout
from packprep.sources.token_files.flat import npy_layout
from packprep.sources.token_files.layout import TokenLayout
from packprep.sources.token_files.megatron import megatron_layout
from packprep.sources.token_files.names import TOKEN_KINDS, beside_tokens, is_file
from packprep.support.errors import InputError

_LAYOUTS = {"bin": megatron_layout, "npy": npy_layout, "ds": datatrove_layout}
_LARGEST = 2**31


def check_token_file(path: Path, name: str, result: ForeignResult) -> None:
    """Check a .bin, .npy or .ds and the files beside it. name: of the file, for messages."""
    try:
        beside = [Path(other) for other in beside_tokens(str(path), is_file)]
    except InputError as error:
        what = str(error).removeprefix(f"{path} ").replace(f"{path.parent}/", "")
        result.findings.add(Finding(kind="file", file=name, what=f"it {what}"))
        return
    if not path.is_file():
        what = "it is missing, and its index is here"
        result.findings.add(Finding(kind="file", file=name, what=what))
        return
    for file in (path, *beside):
        result.count_file(file)
    layout = _LAYOUTS[path.suffix[1:]](path, name, result.findings)
    if layout is None:
        result.say("ids of files whose index is wrong")
        return
    result.segments += layout.documents
    result.packs += layout.packs
    result.tokens += int(layout.offsets[-1])
    try:
        for first, last in layout.runs():
            _check_ids(layout, first, last, name, result)
            if layout.mask is not None:
                _check_mask(layout, first, last, name, result)
    except FormatError as error:
        result.findings.damaged(error, str(path))


def _check_ids(
    layout: TokenLayout, first: int, last: int, name: str, result: ForeignResult
) -> None:
    ids = layout.tokens(first, last)
    limit = result.vocab_size or _LARGEST
    if not len(ids) or (int(ids.max()) < limit and int(ids.min()) >= 0):
        return
    wrong = np.flatnonzero((ids < 0) | (ids >= limit))

    def finding(token: int) -> Finding:
        segment, place = _place(layout, first, token)
        what = f"the id is {ids[token]}; expected 0 to {limit - 1}"
        return Finding(kind="token id", file=name, segment=segment, token=place, what=what)

    result.findings.many("token id", wrong, finding)


def _check_mask(
    layout: TokenLayout, first: int, last: int, name: str, result: ForeignResult
) -> None:
    mask = layout.mask_values(first, last)
    assert layout.mask is not None
    where = str(Path(name).with_name(layout.mask.name))

    def finding(token: int) -> Finding:
        segment, place = _place(layout, first, token)
        what = f"the mask is {mask[token]}; expected 0 or 1"
        return Finding(kind="mask", file=where, segment=segment, token=place, what=what)

    wrong: NDArray[Any] = np.flatnonzero(mask > 1)
    result.findings.many("mask", wrong, finding)


def _place(layout: TokenLayout, first: int, token: int) -> tuple[int, int]:
    """Document, and position in it, of a token of a run that begins with document `first`."""
    at = int(layout.offsets[first]) + token
    document = int(np.searchsorted(layout.offsets, at, side="right")) - 1
    return document, at - int(layout.offsets[document])


def is_token_name(name: str) -> bool:
    """True for x.bin, x.idx, x.npy and x.ds."""
    return name.rpartition(".")[2] in TOKEN_KINDS
