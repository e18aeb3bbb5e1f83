"""Top-k with error feedback."""

from wayfare.sparsify.memory import remainder
from wayfare.sparsify.topk import Sparse, top_k

__all__ = ["Sparse", "remainder", "top_k"]
