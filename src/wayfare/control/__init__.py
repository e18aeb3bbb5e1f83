"""The Lyapunov controller: closed forms, the virtual energy queue, the automatic weight and budgets.

Design decisions:

- `control.weight = "auto"` solves for the price of a joule, not for V. Only q/V enters Proposition 2, and the best
  allocation has one such ratio for all contacts of a device. Without learning it reaches 98 to 100 % of the objective
  of the best price in hindsight.
- Uncertain futures count less: F / (1 + 3^2 v), with v the relative variance of what later contacts could use
  (`CAUTION`). Planning on the expected number of contacts would leave energy unused.
"""
