"""Writes what the code says into the pages of the reference and of concepts: ``python -m docs.site``."""

from __future__ import annotations

from docs.site import commands, pictures, supported

for each in (commands, pictures, supported):
    each.write()
