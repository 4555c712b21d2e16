"""What the heads are worth, what rescoring adds, and what is left: statistics of lattices and drafts.

Every statistic is a function of arrays and returns a frozen dataclass of counts.
"""

from latticebpd.analysis.comparison import Comparison, compare
from latticebpd.analysis.entropy import HeadEntropy, Regression, entropy_bounds, h_max, head_entropy, regress
from latticebpd.analysis.hardware import Decoding, HardwareCost, ModelShape, hardware_cost
from latticebpd.analysis.latency import Latency, rescoring_latency
from latticebpd.analysis.oracle import OracleTally, lengths_of, ranks, tally
from latticebpd.analysis.signature import Signature
from latticebpd.analysis.stream import Shard, blocks
from latticebpd.analysis.systems import Outcome, outcome, run_system

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
