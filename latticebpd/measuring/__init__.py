"""What the heads are worth, what rescoring adds, and what is left: statistics of lattices and drafts.

Every statistic is a function of arrays and returns a frozen dataclass of counts.
"""

from latticebpd.measuring.comparison import Comparison, compare
from latticebpd.measuring.entropy import HeadEntropy, Regression, entropy_bounds, h_max, head_entropy, regress
from latticebpd.measuring.hardware_cost import Decoding, HardwareCost, ModelShape, hardware_cost
from latticebpd.measuring.latency import Latency, rescoring_latency
from latticebpd.measuring.lattice_files import Shard, blocks
from latticebpd.measuring.oracle_tally import OracleTally, lengths_of, ranks, tally
from latticebpd.measuring.signature import Signature
from latticebpd.measuring.systems import Outcome, outcome, run_system

__all__ = [
    "Comparison",
    "Decoding",
    "HardwareCost",
    "HeadEntropy",
    "Latency",
    "ModelShape",
    "OracleTally",
    "Outcome",
    "Regression",
    "Shard",
    "Signature",
    "blocks",
    "compare",
    "entropy_bounds",
    "h_max",
    "hardware_cost",
    "head_entropy",
    "lengths_of",
    "outcome",
    "ranks",
    "regress",
    "rescoring_latency",
    "run_system",
    "tally",
]
