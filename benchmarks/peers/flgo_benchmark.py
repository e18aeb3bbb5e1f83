"""Data and network for FLGo, which copies this file into a generated benchmark; it requires these names."""

from __future__ import annotations

import job
from torch import nn
from torch.utils.data import TensorDataset

_arrays = job.data()
train_data = TensorDataset(_arrays["train_inputs"], _arrays["train_labels"])
test_data = TensorDataset(_arrays["test_inputs"], _arrays["test_labels"])


def get_model() -> nn.Module:
    return job.network()
