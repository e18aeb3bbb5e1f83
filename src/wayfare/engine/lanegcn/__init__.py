"""LaneGCN on stacks of devices: tables of scenes, batches looked up in them, and the network on batched tensors."""
