"""Jacobi decoding (Santilli 2023): a text's tokens as the unknowns of a system of equations, solved in parallel.

``algorithms`` are the paper's three, ``initial`` their first values, ``blocks`` how a text is cut, ``solver`` the
iteration, ``solution`` what comes out of it. ``trajectory`` lays its passes out place by place, ``dependencies``
measures which tokens waited for which.
"""

from latticebpd.jacobi.algorithms import gauss_seidel_jacobi, hybrid_jacobi, jacobi
from latticebpd.jacobi.block_schedule import Blocks, BlocksThenSingle, Length, LengthRatio, Schedule, Whole
from latticebpd.jacobi.dependencies import Dependencies, Wait, dependencies
from latticebpd.jacobi.initial_values import (
    Block,
    DraftedInitial,
    Initial,
    NgramContinuation,
    Padding,
    PreviousOutput,
    RandomTokens,
    SourceCopy,
)
from latticebpd.jacobi.solution import Iterate, Solution
from latticebpd.jacobi.solver import Options, solve
from latticebpd.jacobi.trajectory import Cell, Trajectory, trajectory

__all__ = [
    "Block",
    "Blocks",
    "BlocksThenSingle",
    "Cell",
    "Dependencies",
    "DraftedInitial",
    "Initial",
    "Iterate",
    "Length",
    "LengthRatio",
    "NgramContinuation",
    "Options",
    "Padding",
    "PreviousOutput",
    "RandomTokens",
    "Schedule",
    "Solution",
    "SourceCopy",
    "Trajectory",
    "Wait",
    "Whole",
    "dependencies",
    "gauss_seidel_jacobi",
    "hybrid_jacobi",
    "jacobi",
    "solve",
    "trajectory",
]
