"""Structured output: what forced tokens, drafts and both save."""
