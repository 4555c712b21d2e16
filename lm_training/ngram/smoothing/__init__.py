"""Smoothing methods, one a file; a new one is a class derived from ``Smoothing`` and an entry of ``SMOOTHINGS``."""

from lm_training.ngram.smoothing.absolute import AbsoluteDiscounting
from lm_training.ngram.smoothing.base import Smoothing
from lm_training.ngram.smoothing.katz import Katz
from lm_training.ngram.smoothing.katz_opengrm import OpenGrmKatz
from lm_training.ngram.smoothing.witten_bell import WittenBell

SMOOTHINGS: dict[str, Smoothing] = {
    "katz": Katz(),
    "katz-opengrm": OpenGrmKatz(),
    "witten-bell": WittenBell(),
    "absolute": AbsoluteDiscounting(),
}
"""The smoothing methods by their names on the command line."""

__all__ = ["SMOOTHINGS", "AbsoluteDiscounting", "Katz", "OpenGrmKatz", "Smoothing", "WittenBell"]
