"""Prefixes that rows share, each written once: a step from one table of segments to another.

The rows are segments as the filters, `overflow` and `stride` leave them. Rows of one document id,
or of one value of `group_prefix`, are merged into trees of a few nodes. The nodes are the new
segments, and a row is the path from a root to the node at which it ends. A tree is in one pack, and
so are trees with rows of one atom.

Rows that begin with an extra BOS share nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from packprep.config.pack_rules import PackRules
from packprep.schemas.columns import NO_LOSS
from packprep.schemas.index.runs import Pointers
from packprep.schemas.names import array
from packprep.support.arrays import Bools, Int32, Int64
from packprep.support.errors import ConfigError
from packprep.trees.cut_trees import cut_oversized
from packprep.trees.merge import merge_prefixes
from packprep.trees.nodes import tree_nodes
from packprep.trees.weights import are_tokens, count_from, fill_weights
from packprep.windows.documents import PREFIX_GROUP, Documents
from packprep.windows.segments import DocumentAccount, RowTable, Segments

_COUNTED = 1 << 22  # tokens whose weights are counted at a time


@dataclass(frozen=True, kw_only=True)
class _Trees:
    """Trees in the order of their first rows; a tree's nodes and rows are consecutive.

    rows: in depth-first order.
    last: int64 [rows], the node at which each ends.
    head: int64 [rows], first tokens without a label.
    nodes: in depth-first order.
    atom: int64 [nodes], one number for the nodes of trees that share a pack.
    parent: int64 [nodes], the node before, -1 at a root.
    start: int64 [nodes], tokens before the node on its path.
    begins: [rows], True if a tree begins with the row.
    labels: of each row's first token, or None if all tokens are trained.
    untrained: label of a token without loss.
    """

    rows: Segments
    last: Int64
    head: Int64
    nodes: Segments
    atom: Int64
    parent: Int64
    start: Int64
    begins: Bools
    labels: Pointers | None
    untrained: int

    @property
    def segments(self) -> Segments:
        """The nodes, with all columns."""
        number = np.arange(len(self.nodes))
        rows = RowTable(
            first=np.searchsorted(self.last, np.append(number, len(number))),
            document=self.rows.document,
            start=self.rows.start,
            trained=self.weights.trained,
            begin=self.weights.begin,
        )
        parent = np.where(self.parent < 0, 0, number - self.parent)
        return replace(
            self.nodes, atom=self.atom, parent=parent, trained=self.weights.of_nodes, rows=rows
        )

    @cached_property
    def weights(self) -> "_Weights":
        """Trained tokens of all nodes and rows, counted for some trees at a time."""
        lengths = self.nodes.lengths.astype(np.int64)
        roots = np.append(np.flatnonzero(self.parent < 0), len(lengths))
        tree_rows = np.append(np.flatnonzero(self.begins), len(self.last))
        before = np.append(0, np.cumsum(lengths))
        weights, tree = _Weights.zeros(len(lengths), len(self.last)), 0
        while tree < len(roots) - 1:
            goal = before[roots[tree]] + _COUNTED
            end = max(int(np.searchsorted(before[roots], goal, side="right")) - 1, tree + 1)
            nodes = slice(int(roots[tree]), int(roots[end]))
            rows = slice(int(tree_rows[tree]), int(tree_rows[end]))
            self._weigh(rows, nodes, before[nodes] - before[nodes.start], weights)
            tree = end
        return weights

    def _weigh(self, rows: slice, nodes: slice, place: Int64, weights: "_Weights") -> None:
        """Fill in the weights of consecutive trees.

        place: [nodes], tokens of the nodes before each.
        """
        length, bos = self.nodes.count[nodes].astype(np.int64), self.nodes.bos[nodes]
        last, start = self.last[rows] - nodes.start, self.start[nodes]
        parent = np.where(self.parent[nodes] < 0, -1, self.parent[nodes] - nodes.start)
        of_tokens = np.zeros(int((length + bos).sum()), np.int32)
        begin, counts = weights.begin[rows], np.zeros(len(last), np.int32)
        labels = Pointers.null(len(last)) if self.labels is None else self.labels.take(rows)
        fill_weights(
            labels.address,
            np.empty(0, labels.dtype),
            self.untrained,
            self.head[rows],
            last,
            start,
            length,
            parent,
            place + bos,
            of_tokens,
            weights.trained[rows],
            begin,
        )
        count_from(begin, last, start, length, parent, place + bos, of_tokens, counts)
        begin += self.rows.bos[rows]  # tokens of a row are counted with its extra BOS
        weights.of_nodes[nodes] = np.add.reduceat(of_tokens > 0, place, dtype=np.int32)
        weights.fits[rows] = counts == weights.trained[rows]


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """Trained tokens of nodes and rows.

    of_nodes: [nodes], tokens that at least one row trains.
    trained: [rows], tokens that each row trains.
    begin: [rows], tokens before the first of them; all tokens if there is none.
    fits: [rows], True if a row, from its first trained token on, trains all tokens that any row
        trains: then its labels follow from those of the tree.
    """

    of_nodes: Int32
    trained: Int32
    begin: Int32
    fits: Bools

    @staticmethod
    def zeros(nodes: int, rows: int) -> "_Weights":
        of_nodes, trained, begin = (np.zeros(count, np.int32) for count in (nodes, rows, rows))
        return _Weights(
            of_nodes=of_nodes, trained=trained, begin=begin, fits=np.zeros(rows, np.bool_)
        )


def share_prefixes(
    documents: Documents, segments: Segments, account: DocumentAccount, rules: PackRules
) -> tuple[Segments, DocumentAccount]:
    """Merge the rows of each group; the new segments, and the account.

    segments: the rows; those that do not fit (see `_Weights`) are left alone, and so are rows that
    would tie more trees together than a pack holds. Prefixes of fewer than `share_prefixes` tokens
    are not shared. A tree that is larger than a pack, or has more segments than one may have, is
    cut, and the tokens that this repeats count as overlap. Raises ConfigError for documents whose
    lengths alone are known.
    """
    if len(segments) and not documents.tokens.memory:
        raise ConfigError(
            "--share-prefixes needs the tokens of rows, and only their lengths are known; build "
            "with --keep-tokens DIR, or plan a token store that has them"
        )
    alone = segments.bos.copy()
    of_row = sharing_groups(documents)[segments.document]
    while True:
        order, groups = _grouped(of_row, alone)
        trees, of_trees, shared = _grow(documents, segments.take(order), groups, rules)
        left = ~trees.weights.fits | _rows_apart(trees, rules)
        if not left.any():
            break
        alone[order[of_trees[left]]] = True
    written = np.where(trees.begins, 0, shared)

    def by_document(values: Int64) -> Int64:
        sums = np.bincount(trees.rows.document, weights=values, minlength=len(documents))
        return sums.astype(np.int64)

    account = replace(
        account,
        shared=by_document(shared),
        overlap=account.overlap + by_document(shared - written),
    )
    return trees.segments, account


def _rows_apart(trees: _Trees, rules: PackRules) -> Bools:
    """Mask of the rows of a document that is in several trees, too large for one pack together."""
    apart = np.zeros(len(trees.rows), np.bool_)
    most = rules.packing.max_segments_per_pack
    large = np.bincount(trees.atom, weights=trees.nodes.lengths) > rules.cutting.max_length
    if most is not None:
        large |= np.bincount(trees.atom) > most
    if large.any():
        order = np.argsort(trees.rows.document, kind="stable")
        document, tree = trees.rows.document[order], np.cumsum(trees.begins)[order]
        differ = (document[1:] == document[:-1]) & (tree[1:] != tree[:-1])
        apart[order[1:]] |= differ
        apart[order[:-1]] |= differ
        apart &= large[trees.atom[trees.last]]
    return apart


def sharing_groups(documents: Documents) -> Int64:
    """A number of each document, not negative: documents of one number may share prefixes.

    Documents of different groups never share a pack, so they share no prefix either.
    """
    numbers: Int64 = documents.values.get(PREFIX_GROUP, documents.id)
    if documents.group is None or numbers is documents.id:
        return numbers
    return _codes(numbers) * (int(documents.group.max(initial=0)) + 1) + documents.group


def groups_apart(windows: Iterable[Documents]) -> tuple[int, int]:
    """Groups of `group_prefix` with rows in several of these windows, and all rows of those groups.

    Rows in different windows share no prefix. A document without tokens is no row.
    """
    found = [
        np.unique(documents.values[PREFIX_GROUP][documents.length > 0], return_counts=True)
        for documents in windows
    ]
    _, group, windows_of = np.unique(
        np.concatenate([groups for groups, _ in found]), return_inverse=True, return_counts=True
    )
    rows = np.bincount(group, weights=np.concatenate([rows for _, rows in found]))
    apart = windows_of > 1
    return int(apart.sum()), int(rows[apart].sum())


def _grouped(of_row: Int64, alone: Bools) -> tuple[Int64, Int64]:
    """An order of rows that puts rows of one group together, and the first row of each group.

    of_row: the group of each, not negative. Rows that are alone are groups of their own. Groups are
    in the order of their first rows.
    """
    codes = _codes(np.where(alone, -1 - np.cumsum(alone), of_row))
    order = np.argsort(codes, kind="stable")
    begins = np.ones(len(codes), np.bool_)
    begins[1:] = np.diff(codes[order]) != 0
    return order, np.append(np.flatnonzero(begins), len(codes))


def _codes(values: Int64) -> Int64:
    """A number for each distinct value, in the order in which they occur first."""
    encoded = array(values).dictionary_encode()
    return np.asarray(encoded.indices, np.int64)


def _grow(
    documents: Documents, rows: Segments, groups: Int64, rules: PackRules
) -> tuple[_Trees, Int64, Int64]:
    """Trees of rows in groups, the number of each of their rows, and its shared tokens."""
    tokens, labels, columns = _columns(documents, rows)
    order, shared = merge_prefixes(tokens, rows.count, groups, columns)
    rows = rows.take(order)
    counts = rows.count.astype(np.int64)
    shared = np.where(shared >= rules.cutting.share_prefixes, shared, 0)
    kept = cut_oversized(
        counts, shared, rules.cutting.max_length, rules.packing.max_segments_per_pack
    )
    atom = np.cumsum(kept == 0) - 1
    if rows.atom is not None:
        atom = _joined(atom, rows.atom)
        by_atom = np.argsort(atom, kind="stable")
        rows, atom = rows.take(by_atom), atom[by_atom]
        order, counts, shared, kept = (each[by_atom] for each in (order, counts, shared, kept))
    nodes = tree_nodes(counts, kept)
    trees = _Trees(
        rows=rows,
        last=nodes.last,
        head=rows.untrained_head(rules.cutting.train_overlap).astype(np.int64),
        nodes=_node_segments(rows, nodes.row, nodes.start, nodes.end),
        atom=atom[nodes.row],
        parent=nodes.parent,
        start=nodes.start,
        begins=kept == 0,
        labels=None if labels is None else labels.take(order),
        untrained=NO_LOSS if documents.labels is None else documents.labels.untrained,
    )
    return trees, order, shared


def _joined(tree: Int64, atom: Int32 | Int64) -> Int64:
    """A number for each row, the same for rows of one tree and for rows of one atom, [rows].

    tree, atom: of each row, from 0. The number is the first tree that is tied to that of the row.
    Example: tree=[0, 0, 1, 2, 3], atom=[5, 6, 7, 6, 7] -> [0, 0, 1, 0, 1]
    """
    of_tree = np.arange(int(tree.max(initial=-1)) + 1)
    while True:
        of_atom = np.full(int(atom.max(initial=-1)) + 1, len(of_tree))
        np.minimum.at(of_atom, atom, of_tree[tree])
        joined = of_tree.copy()
        np.minimum.at(joined, tree, of_atom[atom])
        joined = joined[joined]  # a tree's first tree may know an earlier one
        if (joined == of_tree).all():
            return of_tree[tree]
        of_tree = joined


def _columns(
    documents: Documents, rows: Segments
) -> tuple[Pointers, Pointers | None, list[Pointers]]:
    """First tokens and labels of the rows, and columns to compare.

    Labels are compared only if they are not the tokens: then two rows may train other values.
    """
    start = rows.start.astype(np.int64)
    tokens = documents.tokens.shifted(rows.document, start)
    aligned = dict(documents.aligned)
    values = aligned.pop("labels", None)
    columns = [column.shifted(rows.document, start) for column in aligned.values()]
    if values is None:
        return tokens, None, columns
    labels = values.shifted(rows.document, start)
    own = labels.dtype != np.int8 and not are_tokens(
        labels, tokens, rows.count.astype(np.int64), NO_LOSS
    )
    return tokens, labels, [*columns, labels] if own else columns


def _node_segments(rows: Segments, row: Int64, start: Int64, end: Int64) -> Segments:
    """Nodes as segments of their rows' documents; only a root may have an extra BOS."""
    of_row = rows.take(row)
    return replace(
        of_row,
        start=(of_row.start + start).astype(np.int32),
        count=(end - start).astype(np.int32),
        bos=of_row.bos & (start == 0),
        repeated=None,
    )
