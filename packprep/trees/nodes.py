"""Nodes of trees: runs of tokens that rows have in common, in depth-first order.

Example: rows of 2, 3 and 2 tokens that share 0, 2 and 1 with the row before ->
row [0, 0, 1, 2], start [0, 1, 2, 1], end [1, 2, 3, 2], parent [-1, 0, 1, 0], last [1, 2, 3].
"""

from functools import partial

from packprep.packing.kernels.compiled import kernel
from packprep.schemas.plans.nodes import link_nodes, nodes_of_rows, split_rows

tree_nodes = partial(nodes_of_rows, split=kernel(split_rows), link=kernel(link_nodes))
"""`nodes_of_rows`, compiled."""
