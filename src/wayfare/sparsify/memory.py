"""Error feedback: what was not sent is remembered and offered again (e in Algorithm 1)."""

from __future__ import annotations

from torch import Tensor

from wayfare.sparsify.topk import Sparse


def remainder(vector: Tensor, sent: Sparse) -> Tensor:
    """e = x - S(x): exact, because sent entries become 0 and the others stay as they are."""
    if len(sent) == len(vector):
        # Everything, in order: a plain difference takes a fraction of the time.
        return vector - sent.values
    return vector.index_add(0, sent.indices, sent.values, alpha=-1)
