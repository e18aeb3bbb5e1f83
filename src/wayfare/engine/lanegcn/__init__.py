"""LaneGCN on stacks of devices: tables of scenes, batches from them, and the network on batched tensors."""
