"""Constraints: what a text may be, as automata over tokens. Drafts, verification and sampling meet them there."""
