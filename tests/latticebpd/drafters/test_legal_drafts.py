"""Legal and forced drafts: by brute force over all paths of small random trees."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from latticebpd import DraftTree
from latticebpd.constraints.token_automaton import ILLEGAL
from latticebpd.drafters.legal_drafts import LIKELY, legal_tree, tree_states, with_forced

VOCABULARY, STATES = 4, 5


class Table:
    """An automaton by a table ``[states, vocabulary]`` of next states, ILLEGAL where there is none; a state with one
    legal token forces it."""

    start, vocab_size, weighted = 0, VOCABULARY, False

    def __init__(self, table: list[list[int]]) -> None:
        self.table = np.array(table)

    def legal(self, state: int) -> np.ndarray:
        return self.table[state] != ILLEGAL

    def successors(self, state: int, tokens: np.ndarray) -> np.ndarray:
        return self.table[state][tokens]

    def costs(self, state: int, tokens: np.ndarray) -> np.ndarray:
        return np.zeros(len(tokens), np.float32)

    def forced(self, state: int) -> np.ndarray:
        chain: list[int] = []
        while np.count_nonzero(legal := self.legal(state)) == 1 and len(chain) < 3:
            chain.append(int(np.argmax(legal)))
            state = int(self.table[state][chain[-1]])
        return np.array(chain, np.int64)

    def release(self, state: int) -> None: ...


TABLES = st.lists(
    st.lists(st.sampled_from([ILLEGAL, ILLEGAL, *range(STATES)]), min_size=VOCABULARY, max_size=VOCABULARY),
    min_size=STATES,
    max_size=STATES,
).map(Table)
PATHS = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=4), max_size=5)


def prefixes(tree: DraftTree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]


def state_after(automaton: Table, path: tuple[int, ...]) -> int:
    state = automaton.start
    for token in path:
        state = ILLEGAL if state == ILLEGAL else int(automaton.table[state][token])
    return state


@settings(max_examples=200, deadline=None)
@given(TABLES, PATHS, st.integers(0, 99))
def test_a_legal_tree_has_the_legal_prefixes_and_a_forced_one_what_must_follow(
    automaton: Table, paths: list[list[int]], seed: int
) -> None:
    plain = DraftTree.from_paths(paths)
    steps = np.random.default_rng(seed).uniform(-2, -0.1, len(plain))
    log_probs = np.zeros(len(plain))
    for node, parent in enumerate(plain.parents.tolist()):
        log_probs[node] = steps[node] + (log_probs[parent] if parent >= 0 else 0.0)
    tree = DraftTree(plain.tokens, plain.parents, log_probs)
    assert tree_states(tree, automaton, 0).tolist() == [state_after(automaton, path) for path in prefixes(tree)]
    legal = legal_tree(tree, automaton, 0)
    assert prefixes(legal) == [path for path in prefixes(tree) if state_after(automaton, path) != ILLEGAL]
    forced = with_forced(legal, automaton, 0)
    expected = {*prefixes(legal)}
    root = tuple(automaton.forced(0).tolist())
    expected |= {root[:end] for end in range(1, len(root) + 1)}
    likelihood = dict(zip(prefixes(legal), (legal.log_probs if legal.log_probs is not None else []), strict=True))
    likelihood |= {root[:end]: 0.0 for end in range(1, len(root) + 1)}
    leaf: tuple[int, ...] = ()
    while below := [path for path in expected if path[:-1] == leaf]:
        leaf = max(below, key=likelihood.__getitem__)
    if leaf and likelihood[leaf] >= LIKELY:
        chain = tuple(automaton.forced(state_after(automaton, leaf)).tolist())
        expected |= {leaf + chain[:end] for end in range(1, len(chain) + 1)}
    assert {*prefixes(forced)} == expected
    assert len(forced) == len(expected)
    assert forced.log_probs is not None
    for node, parent in enumerate(forced.parents.tolist()):
        assert parent < 0 or forced.log_probs[node] <= forced.log_probs[parent]
