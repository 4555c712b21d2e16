"""Smoothing methods, one a file; a new one is a class derived from ``Smoothing`` and an entry of ``SMOOTHINGS``."""

from lm_training.ngram.smoothing.base import Smoothing
from lm_training.ngram.smoothing.katz import Katz
from lm_training.ngram.smoothing.katz_opengrm import OpenGrmKatz

SMOOTHINGS: dict[str, Smoothing] = {
    "katz": Katz(),
    "katz-opengrm": OpenGrmKatz(),
}
"""The smoothing methods by their names on the command line."""

__all__ = ["SMOOTHINGS", "Katz", "OpenGrmKatz", "Smoothing"]
