"""Drafters: ``drafter`` says what one is.

Most draft from lattices: ``lattice_drafter`` joins a source of lattices (``family``) and a strategy (``strategies``),
``system_names`` makes them by name. The others need no lattice, one idea per file.

Names are loaded when they are first used: strategies need only numpy, and what drafts from models needs torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
