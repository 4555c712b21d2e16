"""Neural rescorers: ``rescorer`` and their base in ``causal_rescorer``; ``level_search`` searches lattices slot by
slot, and ``prefix_reader`` runs the model."""

from latticebpd.scoring.neural.causal_rescorer import CausalRescorer
from latticebpd.scoring.neural.rescorer import NeuralRescorer, ParallelNeuralRescorer

__all__ = ["CausalRescorer", "NeuralRescorer", "ParallelNeuralRescorer"]
