"""Drafts and a constraint: drafts that are not legal are cut, and what must follow is drafted."""

from __future__ import annotations

import numpy as np

from latticebpd.constraints.token_automaton import ILLEGAL, TokenAutomaton, after
from latticebpd.lattices.drafts import ROOT, DraftTree, Edge


def legal_tree(tree: DraftTree, automaton: TokenAutomaton, state: int) -> DraftTree:
    """The tree without the nodes whose token is not legal after their prefix, and what follows them.  state: before
    the tree."""
    return tree.subtree(tree_states(tree, automaton, state) != ILLEGAL)


def with_forced(tree: DraftTree, automaton: TokenAutomaton, state: int) -> DraftTree:
    """A legal tree, and what must follow its root and its likeliest path; those tokens come first, as likely as what
    they follow."""
    leaf = _likeliest_leaf(tree)
    end = state if leaf == ROOT else int(tree_states(tree, automaton, state)[leaf])
    chain = _legal_chain(automaton, state)
    below = _legal_chain(automaton, end) if leaf != ROOT else []
    if not chain and not below:
        return tree
    log_probs = np.zeros(len(tree)) if tree.log_probs is None else tree.log_probs
    nodes: dict[Edge, int] = {}
    weights: dict[int, float] = {}

    def add(node: int, token: int, weight: float) -> int:
        node = nodes.setdefault((node, token), len(nodes))
        weights.setdefault(node, weight)
        return node

    node = ROOT
    for token in chain:
        node = add(node, token, 0.0)
    moved = {ROOT: ROOT}
    for (parent, token), node in tree.edges.items():
        moved[node] = add(moved[parent], token, float(log_probs[node]))
    node = moved[leaf]
    for token in below:
        node = add(node, token, float(log_probs[leaf]))
    known = tree.log_probs is not None or not len(tree)
    return DraftTree.of_edges(nodes, np.array([*weights.values()]) if known else None, tree.lattice)


def tree_states(tree: DraftTree, automaton: TokenAutomaton, state: int) -> np.ndarray:
    """``[n]`` the state after each node, ILLEGAL for those that cannot be reached."""
    states = np.full(len(tree) + 1, ILLEGAL, np.int64)
    states[ROOT] = state  # the last entry is the root's
    for parent in (ROOT, *range(len(tree))) if len(tree) else ():
        if states[parent] != ILLEGAL and len(children := tree.children(parent)):
            states[children] = automaton.successors(int(states[parent]), tree.tokens[children])
    return states[:-1]


def _legal_chain(automaton: TokenAutomaton, state: int) -> list[int]:
    """The forced tokens, as far as they are legal."""
    chain: list[int] = []
    for token in automaton.forced(state).tolist():
        if (state := after(automaton, state, token)) == ILLEGAL:
            break
        chain.append(token)
    return chain


def _likeliest_leaf(tree: DraftTree) -> int:
    """The end of the path that goes to the likeliest child at each node, or to the first of equal ones."""
    node = ROOT
    while len(children := tree.children(node)):
        best = 0 if tree.log_probs is None else int(np.argmax(tree.log_probs[children]))
        node = int(children[best])
    return node
