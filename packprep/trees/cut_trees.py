"""Cut trees that are larger than a pack.

Trees are rows in depth-first order and the tokens that each shares with the row before; see
`merge_prefixes`. So a row with 0 begins a tree, and to lower a number is to repeat tokens.
"""

from functools import partial

from packprep.packing.kernels.compiled import kernel
from packprep.schemas.plans.cuts import cut_trees, cut_trees_loop

cut_oversized = partial(cut_trees, loop=kernel(cut_trees_loop))
"""`cut_trees`, compiled."""
