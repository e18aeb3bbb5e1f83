"""What can be known before training: the paper's bounds, as printed and as corrected, and a planner.

The derivations are in docs/errata.md, the symbols in docs/equations.md.
"""
