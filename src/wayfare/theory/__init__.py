"""Predictions before training: the paper's bounds, printed and corrected, and the planner.

docs/errata.md has the derivations, docs/equations.md the symbols.

Design decisions:

- The theory counts contacts as the simulator does when both are compared (`counting="start"`). The bounds default to
  the paper's counting.
- A rehearsal runs the scheme itself on modelled norms. It calls the same `decide` as a run, so it works for your own
  scheme and is exact for schemes that ignore norms.
"""
