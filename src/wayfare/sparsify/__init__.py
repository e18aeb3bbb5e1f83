"""Exact top-k, and vectors with kept entries subtracted.

Design decisions:

- Top-k is exact, and ties go to the lower index. On a CPU a strided sample brackets the threshold, and only entries in
  the bracket are searched.
"""

from wayfare.sparsify.memory import remainder, subtract
from wayfare.sparsify.tail import with_tail
from wayfare.sparsify.topk import Sparse, top_k

__all__ = ["Sparse", "remainder", "subtract", "top_k", "with_tail"]
