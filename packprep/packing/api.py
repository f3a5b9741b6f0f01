"""`pack_lengths`: lengths of documents in, a plan out, by any strategy.

Most strategies work on the number of documents of each length: planning takes milliseconds for any
number of documents, and dealing documents to the planned packs is a counting sort. 10 million
documents take about an eighth of a second on one core, and 20 bytes of memory per document.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..schemas.arrays import Int32, Int64
from ..schemas.cost import ATTENTION_COST, Cost
from ..support.errors import ConfigError, nearest
from ..support.hashing import Purpose, stream
from .kernels.common import interpreted
from .kernels.deal import ORDERS, plan_of_documents
from .plan import PackPlan
from .repack import repacking
from .strategies import NO_LIMIT, STRATEGIES, ItemPlanner, Items, PackedItems, arranged_packs

_LONGEST = 2**24  # tokens in a pack; tables of this size take a few hundred megabytes


def pack_lengths(
    lengths: ArrayLike,
    max_length: int,
    strategy: str = "best_fit",
    seed: int = 0,
    *,
    order: str = "shuffle",
    shuffle_documents: bool = False,
    max_segments_per_pack: int | None = None,
    groups: ArrayLike | None = None,
    atoms: ArrayLike | None = None,
    num_packs: int | None = None,
    balance_ranks: int = 8,
    cost: Cost | tuple[float, float] = ATTENTION_COST,
    repack: bool = False,
) -> PackPlan:
    """Pack documents of these lengths into packs of at most max_length tokens.

    lengths: integers [documents], tokens, each in 1..max_length; at most 2**31 - 1 documents.
    max_length: 1..2**24. strategy: greedy (input order, a new pack when the next document doesn't
    fit), first_fit_input (input order, the first pack with room), first_fit (decreasing), knapsack
    (first_fit, filled pack by pack: the same packs), best_fit (decreasing), optimal (perfect fills;
    never more packs than best_fit), stream (input order, each pack closed by documents that fit
    exactly), balanced (num_packs packs, as even as possible). order: order of the packs: shuffle,
    input (by first document), length (longest document first), or balanced (balance_ranks
    consecutive packs cost about the same). cost: of a document, a `packprep.loaders.Cost`, or
    (a, b) for a * tokens + b * tokens**2.
    Inside a pack, documents are in input order. Documents of equal length are dealt in a seeded
    shuffle, or with order="input" in input order. shuffle_documents: greedy, first_fit_input and
    stream take documents in a seeded shuffle instead of input order.
    groups: integers [documents]; documents of different groups never share a pack. atoms: integers
    [documents], never decreasing; documents of one atom always share a pack.
    max_segments_per_pack: maximum documents in a pack; if packs are not full because of it,
    best_fit, first_fit, knapsack and optimal also try even packs and stream, and keep the fewest
    packs. num_packs: for balanced, not with groups; default: as few packs as possible. repack:
    another seed gives documents other neighbours, see repack.py; not with order="input".

    The same arguments give the same plan on any machine. Raises ConfigError.
    Example: pack_lengths([5, 6, 2, 3], 8, order="input") packs documents [0, 3] and [1, 2].
    """
    for kind, name, known in (("strategy", strategy, STRATEGIES), ("order", order, ORDERS)):
        if name not in known:
            raise ConfigError(f"{kind} is {name!r}{nearest(str(name), known)}")
    if repack and order == "input":
        raise ConfigError("repack cannot keep documents in input order; choose another order")
    if num_packs is not None and (strategy != "balanced" or groups is not None):
        raise ConfigError("num_packs is for strategy balanced without groups; leave it out")
    planner = repacking(strategy) if repack else STRATEGIES[strategy]
    most = _whole_number("max_length", max_length, _LONGEST)
    limit = _whole_number("max_segments_per_pack", max_segments_per_pack)
    documents, counts = _as_lengths(lengths, most)
    group_of = None if groups is None else _per_document("groups", groups, documents.size)
    atom_of = None if atoms is None else _per_document("atoms", atoms, documents.size)
    items = Items(
        lengths=documents,
        counts=counts,
        weights=None,
        max_length=most,
        slots=limit or NO_LIMIT,
        seed=int(seed),
        order=order,
        shuffle_documents=shuffle_documents,
        num_packs=_whole_number("num_packs", num_packs),
        ranks=_whole_number("balance_ranks", balance_ranks),
        cost=Cost(*cost),
    )
    with interpreted(documents.size, most):
        if atom_of is None or not documents.size:
            packs = _planned(planner, items, group_of)
        else:
            joined, starts, group_of_atom = _join_atoms(items, atom_of, group_of)
            packs = plan_of_documents(*_planned(planner, joined, group_of_atom), starts)
            if order in ("length", "balanced"):  # by lengths of documents, not of atoms
                packs = arranged_packs(*packs, items)
    return PackPlan(documents, most, *packs, group_of, atom_of, limit)


def _planned(planner: ItemPlanner, items: Items, groups: NDArray[np.integer] | None) -> PackedItems:
    if groups is None or not groups.size:
        return planner(items)
    return _plan_groups(planner, items, groups)


def _plan_groups(planner: ItemPlanner, items: Items, groups: NDArray[np.integer]) -> PackedItems:
    """Plan each group of items separately, then order all packs."""
    by_group = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[by_group])) + 1
    orders, offsets, start = list[Int64](), [np.zeros(1, np.int64)], 0
    for number, members in enumerate(np.split(by_group, ends)):
        group = replace(
            items,
            lengths=items.lengths[members],
            counts=np.bincount(items.lengths[members], minlength=items.max_length + 1),
            weights=None if items.weights is None else items.weights[members],
            order="shuffle",
            seed=int(stream(items.seed, Purpose.GROUP, number)),
        )
        group_order, group_offsets = planner(group)
        orders.append(members[group_order])
        offsets.append(group_offsets[1:] + start)
        start += members.size
    return arranged_packs(np.concatenate(orders), np.concatenate(offsets), items)


def _join_atoms(
    items: Items, atoms: NDArray[np.integer], groups: NDArray[np.integer] | None
) -> tuple[Items, Int64, NDArray[np.integer] | None]:
    """Join the documents of each atom into one item.

    Returns the items, the first document of each atom [atoms + 1], and the group of each atom. The
    order of the items needs no lengths: orders length and balanced are for documents and are made
    after these are placed.
    """
    first = np.concatenate([[0], np.flatnonzero(atoms[1:] != atoms[:-1]) + 1]).astype(np.int64)
    starts = np.append(first, atoms.size)
    totals = np.add.reduceat(items.lengths, first, dtype=np.int64)
    weights = np.diff(starts)
    _check_atoms(items, atoms, groups, first, totals, weights)
    lengths = totals.astype(np.int32)
    counts = np.bincount(lengths, minlength=items.max_length + 1)
    heavy = items.slots < NO_LIMIT and weights.max() > 1
    joined = replace(
        items,
        lengths=lengths,
        counts=counts,
        weights=weights.astype(np.int32) if heavy else None,
        order="input" if items.order == "input" else "shuffle",
    )
    return joined, starts, None if groups is None else groups[first]


def _check_atoms(
    items: Items,
    atoms: NDArray[np.integer],
    groups: NDArray[np.integer] | None,
    first: Int64,
    totals: Int64,
    weights: Int64,
) -> None:
    """Raise ConfigError for an atom whose documents are apart, in no pack or in two groups.

    first, totals, weights: first document, tokens and documents of each atom.
    """
    decreases = atoms[1:] < atoms[:-1]  # not np.diff, which is never negative in unsigned types
    if decreases.any():
        i = int(np.argmax(decreases)) + 1
        raise ConfigError(
            f"atoms[{i}] is {atoms[i]}, less than the one before; the documents of an atom must be "
            "consecutive"
        )
    for name, values, most in (
        ("tokens", totals, items.max_length),
        ("documents", weights, items.slots),
    ):
        if values.max() > most:
            i = int(np.argmax(values > most))
            raise ConfigError(
                f"atom {atoms[first[i]]} has {values[i]:,} {name} but a pack holds {most:,}; make "
                "it smaller"
            )
    if groups is not None and (groups != np.repeat(groups[first], weights)).any():
        i = int(np.argmax(groups != np.repeat(groups[first], weights)))
        raise ConfigError(
            f"document {i} is in atom {atoms[i]} but not in the group of that atom's first "
            "document; give all documents of an atom the same group"
        )


def _as_lengths(lengths: ArrayLike, max_length: int) -> tuple[Int32, Int64]:
    """Lengths as int32, and the number of documents of each length, int64 [max_length + 1]."""
    array = np.asarray(lengths)
    if array.size == 0:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.size > NO_LIMIT:
        raise ConfigError(
            f"lengths is {array.dtype} of shape {array.shape}, expected a 1-D array of integers, "
            f"at most {NO_LIMIT:,} of them"
        )
    if array.size and not 1 <= array.min() <= array.max() <= max_length:
        wrong = int(np.argmax((array < 1) | (array > max_length)))
        raise ConfigError(
            f"lengths[{wrong}] is {array[wrong]:,} and a pack holds 1 to {max_length:,} tokens; "
            "split, truncate or drop the document"
        )
    documents = np.ascontiguousarray(array, np.int32)
    return documents, np.bincount(documents, minlength=max_length + 1)


def _per_document(name: str, values: ArrayLike, documents: int) -> NDArray[np.integer]:
    array = np.asarray(values)
    if array.shape != (documents,) or (documents and array.dtype.kind not in "iu"):
        raise ConfigError(
            f"{name} must hold an integer for each of {documents:,} documents; got {array.dtype} "
            f"of shape {array.shape}"
        )
    return array


def _whole_number(name: str, value: Any, most: int = NO_LIMIT) -> Any:
    if value is None and name in ("max_segments_per_pack", "num_packs"):
        return None
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= most:
        raise ConfigError(f"{name} is {value!r} but must be a whole number from 1 to {most:,}")
    return int(value)
