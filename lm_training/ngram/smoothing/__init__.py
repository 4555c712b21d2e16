"""Smoothing methods, one a file; a new one is a class derived from ``Smoothing`` and a line here."""

from lm_training.ngram.smoothing.absolute import AbsoluteDiscounting
from lm_training.ngram.smoothing.base import Smoothing
from lm_training.ngram.smoothing.katz import Katz
from lm_training.ngram.smoothing.katz_opengrm import OpenGrmKatz
from lm_training.ngram.smoothing.katz_srilm import SrilmKatz
from lm_training.ngram.smoothing.stupid_backoff import StupidBackoff
from lm_training.ngram.smoothing.witten_bell import WittenBell

SMOOTHINGS: dict[str, Smoothing] = {
    "katz": Katz(),
    "katz-opengrm": OpenGrmKatz(),
    "katz-srilm": SrilmKatz(),
    "witten-bell": WittenBell(),
    "absolute": AbsoluteDiscounting(),
    "stupid-backoff": StupidBackoff(),
}
"""The smoothing methods, by the names that the command line has for them."""

__all__ = ["SMOOTHINGS", "AbsoluteDiscounting", "Katz", "OpenGrmKatz", "Smoothing", "SrilmKatz", "StupidBackoff", "WittenBell"]
