"""Jacobi decoding (Santilli 2023): a text's tokens as the unknowns of a system of equations, solved in parallel.

``solver`` has the paper's three algorithms, ``initial_values`` their first values, ``block_schedule`` the blocks and
``solution`` the result, with its passes position by position. ``dependencies`` measures which tokens waited for which.
"""

from latticebpd.jacobi.block_schedule import BlockSchedule, Length, LengthRatio
from latticebpd.jacobi.dependencies import Dependencies, Wait, dependencies
from latticebpd.jacobi.initial_values import (
    DraftedInitial,
    Initial,
    NgramContinuation,
    Padding,
    PreviousOutput,
    RandomTokens,
    SourceCopy,
)
from latticebpd.jacobi.solution import Iterate, Solution, TokenStatus, Trajectory, trajectory
from latticebpd.jacobi.solver import JacobiOptions, gauss_seidel_jacobi, hybrid_jacobi, jacobi, solve

__all__ = [
    "BlockSchedule", "Dependencies", "DraftedInitial", "Initial", "Iterate", "JacobiOptions", "Length", "LengthRatio",
    "NgramContinuation", "Padding", "PreviousOutput", "RandomTokens", "Solution", "SourceCopy", "TokenStatus",
    "Trajectory", "Wait", "dependencies", "gauss_seidel_jacobi", "hybrid_jacobi", "jacobi", "solve", "trajectory",
]  # fmt: skip
