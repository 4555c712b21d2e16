"""Copies by spelling: drafts the rest of a word, and the words after it, from where the text has it in other tokens.

Values of structured output mostly stand in the prompt, but after a quote a tokenizer cuts a word in another way than
after a space, so that a copy token by token finds nothing: ``radium`` is written ``rad``, ``ium``. Here the bytes of
the word that has begun are looked up, and what follows them is written as the tokenizer writes it. Words of names are
copied together. Then the value ends: with the terminator that the constraint allows, and what must follow that.

How likely each is was counted on the questions that ``benchmarks/structured/tool_calls.py`` keeps for development.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from latticebpd.constraints.model_tokens import ModelTokens
from latticebpd.constraints.token_automaton import ILLEGAL, TokenAutomaton, after, legal_path
from latticebpd.drafters.drafter import Drafter, State
from latticebpd.lattices.drafts import ROOT, DraftTree, Edge

LONGEST = 32
"""Bytes at the end of the text that are looked up, and bytes that are copied."""
RECENT = 24
"""Bytes before a draft that are written anew with it: a tokenizer's merges reach no further back."""
REST, REST_OF_ONE = 0.9, 0.6
"""Probability of the rest of a word, and where only its first byte is known."""
NAME, WORD, OTHER = (0.9, 0.1), (0.45, 0.3), (0.1, 0.6)
"""Probabilities that the next word is copied, and that the value ends: before a capital or after a hyphen, before
another word, and before anything else."""
LEAST = 0.2
"""Drafts that are less likely are left out."""
_LAST_WORD = re.compile(rb"[A-Za-z0-9_\x80-\xff]*\Z")
_REST = re.compile(rb"[A-Za-z0-9_\x80-\xff]*")
_NEXT = re.compile(rb"([^A-Za-z0-9_\x80-\xff]+)([A-Za-z0-9_\x80-\xff]+)")


class SpelledCopies(Drafter):
    """Drafts for rows with a constraint, within words of values; an empty tree elsewhere, as in free text before a tool
    call.  Its trees tell probabilities.

    tokens: of the model.
    """

    needs_hidden = False

    def __init__(self, tokens: ModelTokens) -> None:
        self.tokens, self._line_end = tokens, tokens.encode("\n")[-1:]
        self._prompts: dict[int, bytes] = {}  # by row

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        rows = {state.row for state in states if state.automaton is not None and not state.is_first}
        self._prompts = {row: prompt for row, prompt in self._prompts.items() if row in rows}
        return [self._tree(state) for state in states]

    def _tree(self, state: State) -> DraftTree:
        if (automaton := state.automaton) is None:
            return DraftTree.empty()
        if any(after(automaton, state.automaton_state, token) != ILLEGAL for token in self._line_end):
            return DraftTree.empty()  # where a line may end there is no value of JSON, but text to draft as any other
        if (prompt := self._prompts.get(state.row)) is None:
            prompt = self._prompts[state.row] = self.tokens.bytes_of(state.tokens[: state.prompt_length])
        new = self.tokens.bytes_of(state.tokens[state.prompt_length :])
        text, nodes, probabilities = prompt + new, dict[Edge, int](), list[float]()
        for copy, probability, ends in copies(text, len(new)):
            node = ROOT
            for token in self._path(text[-RECENT:], copy, ends, automaton, state.automaton_state):
                node = nodes.setdefault((node, token), len(nodes))
                probabilities += [0.0] * (len(nodes) - len(probabilities))
                probabilities[node] = max(probabilities[node], probability)
        return DraftTree.of_edges(nodes, np.log(probabilities)) if nodes else DraftTree.empty()

    def _path(self, before: bytes, copy: bytes, ends: bool, automaton: TokenAutomaton, state: int) -> list[int]:
        """The tokens of a copy, as far as they are legal; where the value ends, with what must follow."""
        path, reached = legal_path(automaton, state, self.tokens.encode_after(before, copy) if copy else [])
        if not ends or reached == ILLEGAL:
            return [] if ends else path
        forced: list[int] = []
        for terminators in ('",}]', ",}]"):  # the second where the first leaves a choice
            after_each = ((each, after(automaton, reached, self.tokens.encode(each)[-1])) for each in terminators)
            legal = next((pair for pair in after_each if pair[1] != ILLEGAL), None)
            if legal is None:
                break
            copy, reached = copy + legal[0].encode(), legal[1]
            if forced := automaton.forced(reached).tolist():
                break
        end = [token for token in forced if self.tokens.spelled[token] is None]
        spelled = self.tokens.encode_after(before, copy + self.tokens.bytes_of(forced))
        return legal_path(automaton, state, [*spelled, *end])[0]


def copies(text: bytes, new: int) -> Iterator[tuple[bytes, float, bool]]:
    """Bytes that may follow a text, how likely they are, and whether the value ends after them.

    new: the text's last bytes that the model has written.  Nothing where the text does not end within a word, or has
    not had that word before.
    """
    word = _LAST_WORD.search(text, len(text) - new)[0]  # type: ignore[index]
    position = length = 0
    for size in range(1, min(len(text), LONGEST)):
        if (begin := text.rfind(text[-size:], 0, -1)) < 0:
            break
        position, length = begin + size, size
    if not word or length < len(word):
        return
    source = text[position : position + LONGEST]
    copy = _REST.match(source)[0]  # type: ignore[index]
    probability = 1.0
    if copy:
        probability = REST if len(word) > 1 else REST_OF_ONE
        yield copy, probability, False
    while True:
        following = _NEXT.match(source, len(copy))
        goes_on, ends = _chances(_LAST_WORD.search(word + copy)[0], following)  # type: ignore[index]
        if probability * ends >= LEAST and b"\\" not in text[-RECENT:]:  # within JSON in a string, values end otherwise
            yield copy, probability * ends, True
        probability *= goes_on
        if following is None or probability < LEAST:
            return
        copy = source[: following.end()]
        yield copy, probability, False


def _chances(word: bytes, following: re.Match[bytes] | None) -> tuple[float, float]:
    """That the words after a word are copied, and that the value ends."""
    between, other = (b"", b"") if following is None else following.groups()
    if between == b"-" or (between == b" " and other[:1].isupper()):
        return NAME
    return WORD if between == b" " and not word.isdigit() else OTHER
