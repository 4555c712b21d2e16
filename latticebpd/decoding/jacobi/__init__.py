"""Jacobi decoding (Santilli 2023): a text's tokens as the unknowns of a system of equations, solved in parallel.

``algorithms`` are the paper's three, ``initial`` their first values, ``blocks`` how a text is cut, ``solver`` the
iteration, ``solution`` what comes out of it.  ``trajectory`` lays its passes out place by place, ``dependencies`` measures
which tokens waited for which.
"""

from latticebpd.decoding.jacobi.algorithms import gauss_seidel_jacobi, hybrid_jacobi, jacobi
from latticebpd.decoding.jacobi.blocks import Blocks, BlocksThenSingle, Length, LengthRatio, Schedule, Whole
from latticebpd.decoding.jacobi.dependencies import Dependencies, Wait, dependencies
from latticebpd.decoding.jacobi.initial import Block, Drafted, Initial, NgramContinuation, Padding, PreviousOutput, RandomTokens, SourceCopy
from latticebpd.decoding.jacobi.solution import Iterate, Solution
from latticebpd.decoding.jacobi.solver import Options, solve
from latticebpd.decoding.jacobi.trajectory import Cell, Trajectory, trajectory

__all__ = [
    "Block",
    "Blocks",
    "BlocksThenSingle",
    "Cell",
    "Dependencies",
    "Drafted",
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
