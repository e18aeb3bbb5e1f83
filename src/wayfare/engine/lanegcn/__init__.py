"""LaneGCN on stacks of devices: tables of scenes, batches from them, and the network on batched tensors.

Design decisions:

- Graphs are computed once, because pairs, poses and lane relations depend only on scenes. Both orders of every edge
  list are prepared: the gradient of a sum is the sum in the other order, so `embedding_bag` needs no atomic additions.
"""
