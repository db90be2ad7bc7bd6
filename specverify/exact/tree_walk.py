"""Moving between the nodes of a prefix tree and the prefixes they stand for."""

import numpy as np
from numpy.typing import NDArray

from specverify.exact.prefix_tree import PrefixTree

OUTSIDE = -1
"""Node of a prefix the tree does not follow: improbable, impossible, or ended before."""


def nodes_at(
    tree: PrefixTree, tokens: NDArray[np.int64], depths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Find the node reached by the first `depths[b]` tokens of each run.

    Args:
        tree: the tree.
        tokens: integers [B, L], padded right with -1.
        depths: integers [B], 0 to L; 0 is the root.

    Returns:
        int64 [B], `OUTSIDE` where the tree has no such node.
    """
    nodes = np.zeros(len(tokens), np.int64)
    for column in range(int(depths.max(initial=0))):
        moving = (nodes >= 0) & (depths > column)
        token = tokens[moving, column]
        reached = tree.children[nodes[moving], token]
        nodes[moving] = np.where((token >= 0) & (reached >= 0), reached, OUTSIDE)
    return nodes


def node_prefixes(tree: PrefixTree) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The prefix of every node.

    Returns:
        int64 [nodes, length - 1], padded right with -1, and the depth of each node, int64 [nodes].
    """
    count = len(tree.children)
    prefixes = np.full((count, max(tree.length - 1, 0)), -1, np.int64)
    depths = np.full(count, -1, np.int64)
    depths[0] = 0
    parents, ids = np.nonzero(tree.children >= 0)
    children = tree.children[parents, ids]
    for depth in range(tree.length - 1):
        here = depths[parents] == depth
        rows = children[here]
        prefixes[rows] = prefixes[parents[here]]
        prefixes[rows, depth] = ids[here]
        depths[rows] = depth + 1
    return prefixes, depths
