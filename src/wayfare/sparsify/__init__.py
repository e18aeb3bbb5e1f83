"""Exact top-k, and vectors with kept entries subtracted."""

from wayfare.sparsify.memory import remainder, subtract
from wayfare.sparsify.tail import with_tail
from wayfare.sparsify.topk import Sparse, top_k

__all__ = ["Sparse", "remainder", "subtract", "top_k", "with_tail"]
