"""Rescoring a lattice with a language model (Kim 2024, section 7.2).

``as_scorer`` decides which scorer a language model makes, and at which weight.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import fst
from fst.automaton import token_sequence
from fst.lattices import warn_of_positive
from fst.model import warn_of_unseen
from latticebpd.checks import expect, expect_count
from latticebpd.constraints.token_automaton import TokenAutomaton
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import Calibration, default_calibration, stored_calibration, stored_files
from latticebpd.scoring.kenlm import KenlmScorer
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.scorer import Context, Scorer, scorer_paths, scorer_trees
from latticebpd.scoring.weights import Tuning, checked_alpha, stored_tunings, weight_for
from latticebpd.scoring.word_lattices import word_lattice_paths

if TYPE_CHECKING:
    import kenlm
    import pywrapfst

NETWORK = "a word lattice's confusion network, SausageLattice(*fst.Lattice.from_fst(automaton).to_sausage())"
AnyLattice: TypeAlias = "SausageLattice | fst.Lattice | pywrapfst.Fst"
LanguageModel: TypeAlias = (
    "fst.NgramModel | Scorer | Tuned | kenlm.Model | pywrapfst.Fst | str | os.PathLike[str] | None"
)


@dataclass(frozen=True, eq=False)
class Tuned:
    """A scorer with what is stored with its model's file: the tunings of its weight, and its calibration."""

    scorer: Scorer
    tunings: tuple[Tuning, ...] = ()
    calibration: Calibration | None = None


def as_scorer(lm: LanguageModel, alpha: float | None = None, system: str | None = None) -> Scorer:
    """The scorer of a language model, as of :func:`rescore`; ValueError for an invalid one.

    alpha: its weight; None: the one that ``latticebpd tune --write`` stored for ``system``, such as ``16-best``, or the
        most similar one, else the scorer's own, by default 1.
    """
    loaded = as_tuned(lm)
    alpha, scorer = weight_for(loaded.tunings, system) if alpha is None else alpha, loaded.scorer
    return scorer if alpha is None or alpha == scorer.alpha else scorer.with_alpha(checked_alpha(alpha))


def calibrated_scorer(lm: LanguageModel) -> CalibratedScorer:
    """The scorer of calibrated trees of lattices and a language model; ValueError if none is stored with the model."""
    if (scorer := _calibrated(lm)) is None:
        name = "none" if lm is None else os.fspath(lm) if isinstance(lm, str | os.PathLike) else type(lm).__name__
        expected = "expected an n-gram model with a calibration stored next to its file"
        raise ValueError(f"{expected}, got {name}; make one by `latticebpd calibrate`")
    return scorer


def text_scorer(lm: LanguageModel) -> CalibratedScorer:
    """The scorer of calibrated trees for models without heads, of an n-gram model and the text, or the text alone;
    ValueError for a language model of another kind.

    The calibration is the one stored with the model if it is for such trees, else the one by default.
    """
    loaded = as_tuned(lm)
    ngram = loaded.scorer.ngram if isinstance(loaded.scorer, CalibratedScorer) else loaded.scorer
    if not isinstance(ngram, NgramScorer):
        wanted = "an n-gram model (FST or ARPA) to draft for a model without heads"
        raise ValueError(f"expected {wanted}, got {type(ngram).__name__}; see `latticebpd train heads`")
    stored = loaded.scorer.calibration if isinstance(loaded.scorer, CalibratedScorer) else loaded.calibration
    if stored is None or not stored.without_lattices:
        stored = default_calibration(ngram.lm is not None)
    return CalibratedScorer(ngram, stored)


def is_calibrated(lm: LanguageModel) -> bool:
    """Whether it has a :func:`calibrated_scorer`."""
    return _calibrated(lm) is not None


def _calibrated(lm: LanguageModel) -> CalibratedScorer | None:
    loaded = as_tuned(lm)
    stored = loaded.calibration
    if stored is not None and not stored.without_lattices and isinstance(loaded.scorer, NgramScorer):
        return CalibratedScorer(loaded.scorer, stored)
    return loaded.scorer if isinstance(loaded.scorer, CalibratedScorer) else None


def tuned(lm: LanguageModel, tunings: tuple[Tuning, ...]) -> Tuned:
    """The model with these tunings in place of its own; its calibration stays."""
    calibrated = _calibrated(lm)
    if calibrated is None:
        return Tuned(as_scorer(lm), tunings)
    return Tuned(calibrated.ngram, tunings, calibrated.calibration)


def fitted_records(lm: LanguageModel) -> tuple[Tuning | Calibration, ...]:
    """The records stored with a model's file of what was fitted on examples."""
    loaded = as_tuned(lm)
    return loaded.tunings if loaded.calibration is None else (*loaded.tunings, loaded.calibration)


def as_tuned(lm: LanguageModel) -> Tuned:
    """The scorer of a language model at its own weight, with what is stored with the model's file."""
    if isinstance(lm, Tuned):
        return lm
    if isinstance(lm, str | os.PathLike):
        path = Path(lm).absolute()  # not of a link's target: a hub's cache links each file to one elsewhere
        return _read(path, tuple(file and file.stat().st_mtime_ns for file in stored_files(path)))
    if isinstance(lm, NgramScorer):  # the usual case: checking the protocol is slow
        return Tuned(lm)
    if lm is None or isinstance(lm, fst.NgramModel):
        return Tuned(NgramScorer(lm))
    if fst.is_openfst(lm):
        return Tuned(NgramScorer(fst.NgramModel.from_fst(lm)))
    if isinstance(lm, Scorer):
        return Tuned(lm)
    if type(lm).__module__ == "kenlm":
        return Tuned(KenlmScorer(lm))
    wanted = "an fst.NgramModel, the path of an ARPA or FST file or of a neural rescorer, a kenlm.Model, an FST"
    raise ValueError(f"expected {wanted} of pynini or pywrapfst, a scorer or None as lm, got {type(lm).__name__}")


@lru_cache(maxsize=8)
def _read(path: Path, modified: tuple[int | None, ...]) -> Tuned:
    """modified: part of the key, so that rewritten files are read again."""
    if not path.is_dir():
        return Tuned(NgramScorer(fst.NgramModel.load(path)), stored_tunings(path), stored_calibration(path))
    from latticebpd.scoring.neural import NeuralRescorer

    return Tuned(NeuralRescorer.from_pretrained(path), stored_tunings(path))


def check_vocabulary(
    lm: LanguageModel, fingerprint: str | None, vocab_size: int | None = None, vocabulary_name: str = "the model"
) -> None:
    """ValueError for a language model of another vocabulary than the lattices', as far as both are known.

    fingerprint, vocab_size: hash and size of the lattices' vocabulary, or None.  vocabulary_name: whose it is, for the
    message.
    """
    check = getattr(as_scorer(lm), "check_vocabulary", None)
    if check is not None:
        check(fingerprint, vocab_size, vocabulary_name)


def rescore(
    lattice: AnyLattice,
    lm: LanguageModel,
    p: int = 16,
    alpha: float | None = None,
    context: Context = (),
    constraint: TokenAutomaton | None = None,
    state: int | None = None,
) -> Drafts:
    """The ``p`` best drafts of a lattice under a language model.

    lattice: top-k outputs of the heads; or a word lattice of any acyclic shape, as an ``fst.Lattice`` or as an
        automaton of pynini or pywrapfst, whose drafts differ in length: -1 follows the end of shorter ones.
    lm: an ``fst.NgramModel``, the path of an ARPA or FST file or of a neural rescorer's directory, a ``kenlm.Model``,
        an n-gram model as an automaton of pynini or pywrapfst, a scorer (``latticebpd.NeuralRescorer``, or your own),
        or None (no rescoring).
    p: number of drafts, less if the lattice has fewer paths.
    alpha: weight of the language model, >= 0; 0 ranks by the lattice only; None takes the weight that is stored with
        the model, by default 1.
    context: tokens before the lattice. Empty means no history, never an implied ``<s>``.
    constraint: an automaton over tokens: only drafts that it allows are searched, exactly, and what their tokens cost
        there is subtracted. Where no path is legal to the lattice's end, drafts are as long as the longest that is; -1
        follows. Not for word lattices.
    state: the automaton's before the lattice; None: its start.
    Returns distinct drafts, best first; ties go to the lexicographically smaller token sequence.
    Warns, once a call, of log-probabilities above 0, and of tokens that an n-gram model does not have, if it has no
    ``<unk>`` either or has none of the tokens.
    Raises ValueError: an argument out of range, or a damaged model file.

    Example:
        >>> lattice = SausageLattice([[3, 7], [4, 8]], [[-0.1, -2.4], [-0.7, -0.7]])
        >>> rescore(lattice, None, p=2).tokens.tolist()
        [[3, 4], [3, 8]]
    """
    p = expect_count("p", p)
    scorer = as_scorer(lm, alpha, f"{p}-best")
    token_sequence("a context", context)
    if isinstance(lattice, SausageLattice):
        _warn_of(lattice, scorer)
        return scorer_paths(scorer, [lattice], [context], p, _constraints(constraint, state))[0]
    expect(constraint is None, "a SausageLattice with a constraint", type(lattice).__name__, f"rescore {NETWORK}")
    return word_lattice_paths(lattice, scorer, context, p)


def draft_tree(
    lattice: SausageLattice,
    lm: LanguageModel,
    num_nodes: int = 64,
    alpha: float | None = None,
    context: Context = (),
    constraint: TokenAutomaton | None = None,
    state: int | None = None,
) -> DraftTree:
    """The prefix tree of at most ``num_nodes`` nodes with the greatest expected number of accepted tokens.

    A node's probability is the product, along its path, of the rescored weights normalised over each slot's arcs. No
    child outweighs its parent, so the ``num_nodes`` most probable prefixes form a tree and, if the probabilities were
    true, no other tree of that size would have more tokens accepted. Under a constraint only legal arcs count, and a
    forced token follows alone, after the lattice's last slot too. Other arguments: as for :func:`rescore`.
    """
    if not isinstance(lattice, SausageLattice):
        raise ValueError(f"expected a SausageLattice, got {type(lattice).__name__}; draft from {NETWORK}")
    num_nodes = expect_count("num_nodes", num_nodes)
    scorer = as_scorer(lm, alpha, f"{num_nodes}-tree")
    token_sequence("a context", context)
    _warn_of(lattice, scorer)
    return scorer_trees(scorer, [lattice], [context], num_nodes, _constraints(constraint, state))[0]


def _constraints(constraint: TokenAutomaton | None, state: int | None) -> list[tuple[TokenAutomaton, int] | None]:
    if constraint is None:
        return [None]
    wanted, remedy = "an automaton over tokens as constraint", "make it by constraint.automaton(tokens, eos_ids)"
    expect(hasattr(constraint, "successors"), wanted, type(constraint).__name__, remedy)
    return [(constraint, constraint.start if state is None else state)]


def _warn_of(lattice: SausageLattice, scorer: Scorer) -> None:
    """Warn the caller's caller of what a lattice most likely does not mean."""
    warn_of_positive(lattice.log_probs, stacklevel=4)
    if isinstance(scorer, NgramScorer) and scorer.lm is not None and scorer.alpha:
        warn_of_unseen(scorer.lm, lattice.tokens, stacklevel=4)
