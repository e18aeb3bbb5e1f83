"""Predictions before training: the paper's bounds, printed and corrected, and the planner.

docs/errata.md has the derivations, docs/equations.md the symbols.
"""
