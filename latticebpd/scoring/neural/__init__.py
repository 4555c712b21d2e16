"""Neural rescorers: ``rescorer`` has them and ``base`` what they share, ``search`` goes through lattices level by
level, ``reader`` asks the model, ``outputs`` is what it says."""

from latticebpd.scoring.neural.causal_rescorer import CausalRescorer
from latticebpd.scoring.neural.rescorer import NeuralRescorer, ParallelNeuralRescorer

__all__ = ["CausalRescorer", "NeuralRescorer", "ParallelNeuralRescorer"]
