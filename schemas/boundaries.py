"""Boundaries of packs: cu_seqlens, and lists as long as their kind says."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .columns import Column
from .errors import FormatError
from .findings import Finding, Findings
from .views import ListView

BoundaryKind = Literal["eos", "bos", "positions"]


def boundaries_of(
    values: NDArray[Any], kind: BoundaryKind, token: int | None = None
) -> NDArray[np.int32]:
    """Boundaries of a row that another tool packed, from its ids: cu_seqlens, int32 [segments + 1].

    values: token ids [tokens]; for kind "positions" the position ids. "eos": a segment ends with
    each `token`, so that a run of them gives segments of one token, and what follows the last is a
    segment too. "bos": a segment begins with each `token`. "positions": a segment begins at each
    position that is not the one before it plus 1. A row always begins a segment.

    Example: [5, 2, 2, 7] with "eos" and token 2 -> [0, 2, 3, 4]
    """
    if kind not in get_args(BoundaryKind):
        raise ValueError(
            f"boundaries is {kind!r}; expected one of {', '.join(get_args(BoundaryKind))}"
        )
    if (kind == "positions") != (token is None):
        raise ValueError(
            f"boundaries is {kind!r} and token is {token}; "
            + ("positions need no token" if token is not None else f"pass the id of {kind.upper()}")
        )
    begins = np.zeros(len(values), np.bool_)
    if kind == "positions":
        begins[1:] = values[1:] != values[:-1] + 1
    elif kind == "bos":
        begins = values == token
    else:
        begins[1:] = values[:-1] == token
    begins[:1] = False
    return np.concatenate([[0], np.flatnonzero(begins), [len(values)]]).astype(np.int32)


def check_boundaries(cu_seqlens: NDArray[np.int32], length: int, where: str) -> None:
    """Raise FormatError unless one pack's cu_seqlens are valid.

    They must start at 0, rise strictly and end at `length`, its number of tokens.
    """
    if (
        len(cu_seqlens) < 2
        or cu_seqlens[0] != 0
        or cu_seqlens[-1] != length
        or not (cu_seqlens[1:] > cu_seqlens[:-1]).all()
    ):
        raise FormatError(
            f"{where}: cu_seqlens are {_short(cu_seqlens)}; expected 0, rising, to the "
            f"pack's {length} tokens"
        )


def bad_packs(
    views: dict[str, ListView],
    columns: Sequence[Column],
    max_length: int,
    where: str,
    first_pack: int,
    findings: Findings,
) -> NDArray[np.bool_]:
    """Packs with wrong boundaries, or with lists of the wrong length for their kind.

    Returns bool [packs]. Each such pack is reported once.
    """
    cu, lengths = views["cu_seqlens"], np.diff(views["tokens"].offsets)
    entries = np.diff(cu.offsets)
    bad = np.zeros(len(lengths), np.bool_)

    def report(packs: NDArray[np.bool_], make: Callable[[int], str]) -> None:
        def finding(pack: int) -> Finding:
            return Finding(kind="boundaries", file=where, pack=first_pack + pack, what=make(pack))

        findings.many("boundaries", np.flatnonzero(packs & ~bad), finding)
        bad[packs] = True

    report(lengths < 1, lambda pack: "it has no tokens; expected at least one")
    report(
        lengths > max_length,
        lambda pack: f"it has {lengths[pack]} tokens; expected at most {max_length}",
    )
    report(
        entries < 2,
        lambda pack: (
            f"cu_seqlens are {_short(cu.row(pack))}; expected 0 and the end of each segment"
        ),
    )
    flat_cu = cu.flat
    if len(flat_cu):
        offsets = cu.offsets.astype(np.int64) - int(cu.offsets[0])
        begins, ends = np.minimum(offsets[:-1], len(flat_cu) - 1), offsets[1:] - 1
        report(
            flat_cu[begins] != 0,
            lambda pack: f"cu_seqlens are {_short(cu.row(pack))}; expected them to start at 0",
        )
        report(
            flat_cu[ends] != lengths,
            lambda pack: (
                f"cu_seqlens are {_short(cu.row(pack))}; expected them to end at the pack's "
                f"{lengths[pack]} tokens"
            ),
        )
        rises = np.ones(len(flat_cu), np.bool_)
        rises[1:] = flat_cu[1:] > flat_cu[:-1]
        rises[begins] = True  # the 0 that starts the next pack
        falls = np.flatnonzero(~rises)
        pack_of = np.searchsorted(offsets, falls, side="right") - 1
        unreported = ~bad[pack_of]

        def empty_segment(entry: int) -> Finding:
            pack = int(np.searchsorted(offsets, entry, side="right")) - 1
            return Finding(
                kind="boundaries",
                file=where,
                pack=first_pack + pack,
                segment=int(entry - 1 - offsets[pack]),
                what=f"it ends at {flat_cu[entry]} and starts at {flat_cu[entry - 1]}; "
                "expected every segment to have a token",
            )

        findings.many("boundaries", falls[unreported], empty_segment)
        bad[pack_of] = True
    expected = {"token": lengths, "segment": entries - 1, "boundary": entries}
    if "row_ids" in views:
        expected["row"] = np.diff(views["row_ids"].offsets)
    for column in columns:
        sizes, valid = np.diff(views[column.name].offsets), expected[column.kind]
        report(
            sizes != valid,
            lambda pack, column=column, sizes=sizes, valid=valid: (  # type: ignore[misc]
                f"{column.name} has {sizes[pack]} values; expected {valid[pack]}, as a "
                f"{column.kind} column"
            ),
        )
    return bad


def _short(values: NDArray[Any]) -> str:
    """[0, 3, 8], or the ends of a long one: [0, 3, 8, ..., 4090, 4096]."""
    if len(values) <= 8:
        return str(values.tolist())
    head, tail = ", ".join(map(str, values[:3])), ", ".join(map(str, values[-2:]))
    return f"[{head}, ..., {tail}]"
