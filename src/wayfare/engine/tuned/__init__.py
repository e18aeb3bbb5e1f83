"""Trained parts of a backbone: every operation takes the minibatches of all devices, with channels last.

Adapters and normalisations are folded into the kernels of each device, which are small. So every way of training is one
chain of convolutions, each with a bias and a ReLU, whose weights devices share or not.
"""
