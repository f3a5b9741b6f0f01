"""Trees of a window: rows that share a prefix, as segments with parents.

Rows are segments as the filters, `overflow` and `stride` leave them. The rows of one document id,
or of one value of `group_prefix`, are merged, so each tree is a few nodes; a node is a segment that
stands once in a pack, and a row is the path from a root to the node at which it ends. A tree stays
in one pack.

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
from packprep.trees.cut_trees import cut_oversized
from packprep.trees.merge import merge_prefixes
from packprep.trees.nodes import tree_nodes
from packprep.trees.weights import are_tokens, count_from, fill_weights
from packprep.windows.documents import PREFIX_GROUP, Documents
from packprep.windows.segments import DocumentAccount, Segments

_COUNTED = 1 << 22  # tokens whose weights are counted at a time


@dataclass(frozen=True, kw_only=True)
class Trees:
    """Trees in the order of their first rows; a tree's nodes and rows are consecutive.

    rows: in depth-first order.
    last: int64 [rows], the node at which each ends.
    head: int64 [rows], first tokens without a label.
    nodes: the segments, in depth-first order.
    parent: int64 [nodes], the node before, -1 at a root.
    start: int64 [nodes], tokens before the node on its path.
    tree_rows: int64 [trees + 1], the first row of each tree.
    labels: of each row's first token, or None if all tokens are trained.
    untrained: label of a token without loss.
    """

    rows: Segments
    last: Int64
    head: Int64
    nodes: Segments
    parent: Int64
    start: Int64
    tree_rows: Int64
    labels: Pointers | None
    untrained: int

    @cached_property
    def roots(self) -> Int64:
        """The first node of each tree, [trees]."""
        return np.flatnonzero(self.parent < 0)

    @property
    def begins_tree(self) -> Bools:
        """Mask of the rows at which a tree begins, [rows]."""
        begins = np.zeros(len(self.last), np.bool_)
        begins[self.tree_rows[:-1]] = True
        return begins

    @property
    def tree_of(self) -> Int64:
        """Tree of each node, [nodes]."""
        trees: Int64 = np.cumsum(self.parent < 0) - 1
        return trees

    @cached_property
    def weights(self) -> "Weights":
        """Trained tokens of all nodes and rows, counted for some trees at a time."""
        lengths = self.nodes.lengths.astype(np.int64)
        roots = np.append(self.roots, len(lengths))
        before = np.append(0, np.cumsum(lengths))
        weights, tree = Weights.zeros(len(lengths), len(self.last)), 0
        while tree < len(roots) - 1:
            goal = before[roots[tree]] + _COUNTED
            end = max(int(np.searchsorted(before[roots], goal, side="right")) - 1, tree + 1)
            nodes = slice(int(roots[tree]), int(roots[end]))
            rows = slice(int(self.tree_rows[tree]), int(self.tree_rows[end]))
            self._weigh(rows, nodes, before[nodes] - before[nodes.start], weights)
            tree = end
        return weights

    def _weigh(self, rows: slice, nodes: slice, place: Int64, weights: "Weights") -> None:
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
class Weights:
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
    def zeros(nodes: int, rows: int) -> "Weights":
        of_nodes, trained, begin = (np.zeros(count, np.int32) for count in (nodes, rows, rows))
        return Weights(
            of_nodes=of_nodes, trained=trained, begin=begin, fits=np.zeros(rows, np.bool_)
        )


def grow_trees(
    documents: Documents, segments: Segments, account: DocumentAccount, rules: PackRules
) -> tuple[Trees, Int32, DocumentAccount]:
    """Merge the rows of each group: the trees, trained tokens of each node, and the account.

    segments: the rows; those that do not fit (see `Weights`) are left alone. Prefixes of fewer
    than `share_prefixes` tokens are not shared. A tree that is larger than a pack, or has more
    segments than one may have, is cut, and the tokens that this repeats count as overlap.
    """
    alone = segments.bos.copy()
    of_row = sharing_groups(documents)[segments.document]
    while True:
        order, groups = _grouped(of_row, alone)
        trees, of_trees, shared = _grow(documents, segments.take(order), groups, rules)
        if (fits := trees.weights.fits).all():
            break
        alone[order[of_trees[~fits]]] = True
    written = np.where(trees.begins_tree, 0, shared)

    def by_document(values: Int64) -> Int64:
        sums = np.bincount(trees.rows.document, weights=values, minlength=len(documents))
        return sums.astype(np.int64)

    account = replace(
        account,
        shared=by_document(shared),
        overlap=account.overlap + by_document(shared - written),
    )
    return trees, trees.weights.of_nodes, account


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
) -> tuple[Trees, Int64, Int64]:
    """Trees of rows in groups, the number of each of their rows, and its shared tokens."""
    tokens, labels, columns = _columns(documents, rows)
    order, shared = merge_prefixes(tokens, rows.count, groups, columns)
    rows = rows.take(order)
    counts = rows.count.astype(np.int64)
    shared = np.where(shared >= rules.cutting.share_prefixes, shared, 0)
    kept = cut_oversized(
        counts, shared, rules.cutting.max_length, rules.packing.max_segments_per_pack
    )
    nodes = tree_nodes(counts, kept)
    trees = Trees(
        rows=rows,
        last=nodes.last,
        head=rows.untrained_head(rules.cutting.train_overlap).astype(np.int64),
        nodes=_node_segments(rows, nodes.row, nodes.start, nodes.end),
        parent=nodes.parent,
        start=nodes.start,
        tree_rows=np.append(np.flatnonzero(kept == 0), len(kept)),
        labels=None if labels is None else labels.take(order),
        untrained=NO_LOSS if documents.labels is None else documents.labels.untrained,
    )
    return trees, order, shared


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
    return Segments(
        document=of_row.document,
        start=(of_row.start + start).astype(np.int32),
        count=(end - start).astype(np.int32),
        bos=of_row.bos & (start == 0),
    )
