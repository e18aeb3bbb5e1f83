"""Where kernels of our own are tested: on a GPU, and without one in Triton's interpreter, where Triton is installed."""

from __future__ import annotations

import pytest
import torch

WHERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# On a GPU for those who ask for such tests, and elsewhere for everyone.
with_kernels = pytest.mark.gpu if WHERE.type == "cuda" else pytest.mark.usefixtures("_interpreter")
