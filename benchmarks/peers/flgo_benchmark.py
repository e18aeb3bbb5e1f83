"""What FLGo copies into a benchmark of its own: data and a network under the names it asks for."""

from __future__ import annotations

import job
from torch import nn
from torch.utils.data import TensorDataset

_arrays = job.data()
train_data = TensorDataset(_arrays["train_inputs"], _arrays["train_labels"])
test_data = TensorDataset(_arrays["test_inputs"], _arrays["test_labels"])


def get_model() -> nn.Module:
    return job.network()
