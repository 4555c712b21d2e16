"""Neural rescorers: ``rescorer`` has them and ``base`` what they share, ``search`` goes through lattices level by level,
``reader`` asks the model, ``outputs`` is what it says, ``settings`` is what is stored beside it."""

from latticebpd.scoring.neural.base import CausalRescorer
from latticebpd.scoring.neural.rescorer import NeuralRescorer, ParallelNeuralRescorer
from latticebpd.scoring.neural.settings import RESCORER_CONFIG, RescorerSettings

__all__ = ["RESCORER_CONFIG", "CausalRescorer", "NeuralRescorer", "ParallelNeuralRescorer", "RescorerSettings"]
