"""Drafters inside other programs, which load them by their names."""
