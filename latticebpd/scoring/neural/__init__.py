"""Neural rescorers: ``rescorer`` and their base in ``causal_rescorer``; ``level_search`` searches lattices slot by
slot, ``prefix_reader`` runs the model, and ``candidate_scores`` takes scores from its outputs."""

from latticebpd.scoring.neural.causal_rescorer import CausalRescorer
from latticebpd.scoring.neural.rescorer import NeuralRescorer, ParallelNeuralRescorer

__all__ = ["CausalRescorer", "NeuralRescorer", "ParallelNeuralRescorer"]
