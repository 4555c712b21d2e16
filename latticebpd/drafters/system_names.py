"""Drafting systems by name, as people say them: the one parser.

    vanilla             the best token of every slot (Stern 2018)
    chain               slot by slot the best token after the one before, by the lattice's transitions (DSpark)
    4-beam              the four best prefixes of every length, each a continuation of one before (SGLang's tree over
                        DFlash 2); any number
    16-best             the 16 best rescored paths (Kim 2024, section 7.2); any number
    64-tree             the best prefix tree of 64 nodes; any number
    64-calibrated       the same under calibrated probabilities, copies from the context among its nodes; for models
                        without heads of the n-gram model and the context alone
    16-best:0-gram      the same without the language model; so for trees
    16-best:NAME        the same with the language model of that name, where several are compared
    oracle              the lattice's best path in hindsight

Where a text is decoded there are also

    greedy              no drafts
    16-copies           copies from the context, 16 nodes
    copies+16-tree      copies first; a tree where they are unsure, 16 nodes together
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from latticebpd.checks import expect
from latticebpd.drafters.copies.prompt_lookup import PromptNgramDrafter
from latticebpd.drafters.cost_aware import CostAwareDrafter, Costs
from latticebpd.drafters.drafter import Drafter, NoDrafter
from latticebpd.drafters.empty_lattices import EmptyLattices
from latticebpd.drafters.family import LatticeSource
from latticebpd.drafters.lattice_drafter import LatticeDrafter
from latticebpd.drafters.mixture import MixtureDrafter
from latticebpd.drafters.strategies import BeamTree, BestTree, GreedyChain, NBestPaths, Oracle, Strategy, Vanilla
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.rescoring import LanguageModel, as_scorer, calibrated_scorer, text_scorer

VANILLA, CHAIN, ORACLE, NO_MODEL, GREEDY, COPIES = "vanilla", "chain", "oracle", "0-gram", "greedy", "copies"
BEST, TREE, CALIBRATED, BEAM = "best", "tree", "calibrated", "beam"
_FORMS = (
    "P-best or N-tree, or N-calibrated, perhaps with :0-gram or a language model's name appended, such as"
    " 16-best:0-gram"
)
_SIZED = re.compile(r"([1-9][0-9]{0,5})-(best|tree|calibrated|beam|copies)(?::(.+))?")
_FIXED: dict[str, Strategy] = {VANILLA: Vanilla(), CHAIN: GreedyChain(), ORACLE: Oracle()}
_RESCORED = (BEST, TREE, CALIBRATED)

Models: TypeAlias = "LanguageModel | Mapping[str, LanguageModel]"
"""One language model, or several by name; the first is that of systems that name none."""


@dataclass(frozen=True)
class SystemName:
    """A strategy's name, taken apart.

    kind: vanilla, chain, oracle, beam, best, tree or calibrated; copies where a text is decoded.
    size: paths or nodes, 0 if it has none.  model: the language model's name, or None.
    """

    kind: str
    size: int = 0
    model: str | None = None

    @classmethod
    def parse(cls, name: str) -> SystemName:
        """Raises ValueError for a name that is no strategy's."""
        system = _parsed(name)
        if system is None or system.kind == COPIES:
            raise ValueError(f"expected vanilla, chain, oracle, {_FORMS}, W-beam, got {name!r}")
        return system

    def chosen(self, models: Mapping[str, LanguageModel]) -> str:
        """The name of its language model among ``models``, the first where it names none; ``0-gram`` for none."""
        if self.kind not in _RESCORED:
            return NO_MODEL
        return self.model if self.model is not None else next(iter(models), NO_MODEL)

    def __str__(self) -> str:
        """The name without the language model's: what a weight is tuned for."""
        return f"{self.size}-{self.kind}" if self.size else self.kind


def _parsed(name: str) -> SystemName | None:
    """The parts of a name; None if it has another form."""
    if name in _FIXED:
        return SystemName(name)
    match = _SIZED.fullmatch(name)
    if match is None or (match[3] and match[2] not in _RESCORED):
        return None
    return SystemName(match[2], int(match[1]), match[3])


def strategy_named(
    name: str, lm: Models = None, alpha: float | None = None, without_lattices: bool = False
) -> Strategy:
    """The strategy of that name; ValueError where it is no system's, or names a language model that is not in ``lm``.

    without_lattices: for a model without heads, for which only calibrated trees can be drafted.
    alpha: the language model's weight; None takes what is stored with it for such a system, and 1 where nothing is.
    """
    system = SystemName.parse(name)
    if without_lattices:
        wanted = "greedy, N-calibrated or N-copies for a model without heads"
        expect(system.kind == CALIBRATED, wanted, repr(name), "see `latticebpd train heads`")
    if system.kind in _FIXED:
        return _FIXED[system.kind]
    if system.kind == BEAM:
        return BeamTree(system.size)
    models: Mapping[str, LanguageModel] = lm if isinstance(lm, Mapping) else {"": lm}
    wanted = system.chosen(models)
    known = ", ".join([NO_MODEL, *filter(None, models)])
    expect(wanted == NO_MODEL or wanted in models, f"a language model among {known}", repr(wanted), of=name)
    if system.kind == CALIBRATED:
        if alpha is not None:
            wanted = f"{name} without a weight of the language model, which the calibration gives"
            raise ValueError(f"expected {wanted}, got alpha {alpha:g}")
        scorer_of = text_scorer if without_lattices else calibrated_scorer
        return BestTree(scorer_of(None if wanted == NO_MODEL else models[wanted]), system.size)
    scorer = as_scorer(None) if wanted == NO_MODEL else as_scorer(models[wanted], alpha, str(system))
    return NBestPaths(scorer, system.size) if system.kind == BEST else BestTree(scorer, system.size)


def rescores(name: str) -> bool:
    """Whether a drafter of that name uses the language model passed to it."""
    system = _parsed(name.removeprefix(f"{COPIES}+"))
    return system is not None and system.kind in _RESCORED and system.model != NO_MODEL


def tells_probabilities(name: str) -> bool:
    """Whether the trees of a drafter of that name tell their nodes' probabilities."""
    system = _parsed(name.removeprefix(f"{COPIES}+"))
    others = () if name.startswith(f"{COPIES}+") else (BEAM, COPIES)
    return system is not None and system.kind in (TREE, CALIBRATED, *others)


def size_of(name: str) -> int:
    """Paths or nodes of the trees of a drafter of that name, 0 if it says none."""
    system = _parsed(name.removeprefix(f"{COPIES}+"))
    return 0 if system is None else system.size


def drafter_named(
    name: str,
    source: LatticeSource | None,
    lm: Models = None,
    alpha: float | None = None,
    prompt_context: bool = True,
    costs: Costs | None = None,
) -> Drafter:
    """The drafter of that name.

    source: of the lattices; a calibration must have been fitted to its drafter's. None: only ``greedy`` and copies are
        possible, and with `EmptyLattices` calibrated trees of the n-gram model and the text.
    lm, alpha: as for :func:`strategy_named`.
    costs: as for `CostAwareDrafter`: trees are cut to the nodes that promise the most tokens a second.
    Raises ValueError for an unknown name, the oracle, which needs the text beforehand, a system of lattices without a
    source, or costs for trees without probabilities.
    """
    if costs is not None:
        forms = "N-tree, N-calibrated, W-beam, N-copies or copies+N-tree"
        expect(tells_probabilities(name), f"{forms} with costs, since these trees can be cut", repr(name))
        return CostAwareDrafter(drafter_named(name, source, lm, alpha, prompt_context), costs)
    if name == GREEDY:
        return NoDrafter()
    lattices = name.removeprefix(f"{COPIES}+")
    system = _parsed(lattices)
    if system is None or (system.kind == COPIES and lattices != name):
        raise ValueError(f"expected greedy, N-copies, copies+N-tree, vanilla, chain, {_FORMS}, W-beam, got {name!r}")
    if system.kind == COPIES:
        return PromptNgramDrafter(block_size=system.size, num_nodes=system.size)
    expect(system.kind != ORACLE, "a system that can draft", "the oracle, which has to know the text beforehand")
    if source is None:
        wanted = "greedy or N-copies without a source of lattices"
        raise ValueError(f"expected {wanted}, got {name!r}; pass one, such as EmptyLattices()")
    strategy = strategy_named(lattices, lm, alpha, isinstance(source, EmptyLattices))
    if isinstance(strategy, BestTree) and isinstance(strategy.scorer, CalibratedScorer):
        _check_calibration(strategy.scorer.calibration, source)
    drafter = LatticeDrafter(source, strategy, prompt_context)
    if lattices == name:
        return drafter
    expect(system.kind in (TREE, CALIBRATED), "copies+N-tree, since only trees tell how sure they are", repr(name))
    copying = PromptNgramDrafter(block_size=system.size, num_nodes=system.size)
    return MixtureDrafter(copying, drafter, num_nodes=system.size)


def _check_calibration(calibration: Calibration, source: LatticeSource) -> None:
    """ValueError where it was fitted to another drafter's lattices, as far as the source tells whose its own are."""
    known, files, shaped = calibration.drafter, getattr(source, "files", None), getattr(source, "with_shape", None)
    if calibration.without_lattices or shaped is None:
        return
    if known is None or files is None:
        calibration.check_drafter(None, shaped(getattr(source, "k", 1)).num_slots)
    elif known != files.family:  # a hash takes time
        calibration.check_drafter(files.name)
