"""latticebpd: lattice rescoring with a finite-state backend for blockwise parallel decoding.

Overview of types, in the order in which data flows through them::

    heads' logits -> SausageLattice -> rescore -> Drafts ─┐
                                    -> draft_tree ────────┴-> DraftTree -> generate (verify, accept, commit)

Each name is loaded when it is first used, so that those which need only numpy leave torch out; ``__init__.pyi`` lists
them all.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import extend_path

import lazy_loader

import fst

if not hasattr(fst, "NgramModel"):  # some other module of this common name comes first on the path
    raise ImportError(
        f"expected latticebpd's own package 'fst', but {getattr(fst, '__file__', None) or list(fst.__path__)} comes"
        f" first on the import path; rename it or put {Path(__file__).parent.parent} before it"
    )

# As fst does: a clone finds the compiled part of the installed package.
__path__ = extend_path(__path__, __name__)
cpu = import_module("latticebpd.cpu")
cpu.__path__ = extend_path(cpu.__path__, cpu.__name__)
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
