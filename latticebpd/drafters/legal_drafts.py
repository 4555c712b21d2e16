"""Drafts and a constraint: drafts that are not legal are cut, and what must follow is drafted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from latticebpd.constraints.token_automaton import ILLEGAL, TokenAutomaton, legal_path
from latticebpd.lattices.drafts import ROOT, DraftTree, Edge

LIKELY = math.log(0.5)


def legal_tree(tree: DraftTree, automaton: TokenAutomaton, state: int) -> DraftTree:
    """The tree without the nodes whose token is not legal after their prefix, and what follows them.  state: before
    the tree."""
    return tree.subtree(tree_states(tree, automaton, state) != ILLEGAL)


def with_forced(tree: DraftTree, automaton: TokenAutomaton, state: int) -> DraftTree:
    """A legal tree, and what must follow its root and then its likeliest path, as likely as what it follows.

    Nothing follows a path that is less likely than not: then the forced tokens are probably read for nothing.
    """
    tree = _with_chain(tree, ROOT, legal_path(automaton, state, automaton.forced(state).tolist())[0])
    leaf = _likeliest_leaf(tree)
    if leaf == ROOT or (tree.log_probs is not None and tree.log_probs[leaf] < LIKELY):
        return tree
    _, state = legal_path(automaton, state, tree.tokens[tree.path(leaf)].tolist())
    return _with_chain(tree, leaf, legal_path(automaton, state, automaton.forced(state).tolist())[0])


def _with_chain(tree: DraftTree, node: int, chain: Sequence[int]) -> DraftTree:
    """A tree with a chain of tokens below a node."""
    if not chain:
        return tree
    nodes: dict[Edge, int] = dict(tree.edges)
    log_probs = np.zeros(len(tree)) if tree.log_probs is None else tree.log_probs
    log_prob = 0.0 if node == ROOT else float(log_probs[node])
    weights = log_probs.tolist()
    for token in chain:
        node = nodes.setdefault((node, token), len(nodes))
        weights[node:] = [log_prob, *weights[node + 1 :]]
    known = tree.log_probs is not None or not len(tree)
    return DraftTree.of_edges(nodes, np.array(weights) if known else None, tree.lattice)


def tree_states(tree: DraftTree, automaton: TokenAutomaton, state: int) -> np.ndarray:
    """``[n]`` the state after each node, ILLEGAL for those that cannot be reached."""
    states, children = np.full(len(tree) + 1, ILLEGAL, np.int64), dict[int, list[int]]()
    states[ROOT] = state  # the last entry is the root's
    for node, parent in enumerate(tree.parents.tolist()):
        children.setdefault(parent, []).append(node)
    for parent, nodes in sorted(children.items()):
        if states[parent] != ILLEGAL:
            states[nodes] = automaton.successors(int(states[parent]), tree.tokens[nodes])
    return states[:-1]


def _likeliest_leaf(tree: DraftTree) -> int:
    """The end of the path that goes to the likeliest child at each node, or to the first of equal ones."""
    node = ROOT
    while len(children := tree.children(node)):
        best = 0 if tree.log_probs is None else int(np.argmax(tree.log_probs[children]))
        node = int(children[best])
    return node
