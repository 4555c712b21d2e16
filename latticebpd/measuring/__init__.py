"""Statistics of lattices and drafts: quality of the heads, gains of rescoring, and the headroom that is left.

Every statistic is a function of arrays and returns a frozen dataclass of counts.
"""

from latticebpd.measuring.comparison import Comparison, compare
from latticebpd.measuring.entropy import entropy_bounds, h_max, head_entropy, regress
from latticebpd.measuring.lattice_files import Shard, blocks
from latticebpd.measuring.oracle_tally import OracleTally, lengths_of, ranks, tally

__all__ = [
    "Comparison", "OracleTally", "Shard", "blocks", "compare", "entropy_bounds", "h_max",
    "head_entropy", "lengths_of", "ranks", "regress", "tally",
]  # fmt: skip
