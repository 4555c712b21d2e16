"""What the heads are worth, what rescoring adds, and what is left: statistics of lattices and drafts.

Every statistic is a function of arrays and returns a frozen dataclass of counts.
"""

from latticebpd.analysis.comparison import Comparison, compare
from latticebpd.analysis.oracle import OracleTally, lengths_of, ranks, tally
from latticebpd.analysis.stream import Shard, blocks
from latticebpd.analysis.systems import Outcome, run_system

__all__ = ["Comparison", "OracleTally", "Outcome", "Shard", "blocks", "compare", "lengths_of", "ranks", "run_system", "tally"]
