"""A fingerprint of how this machine rounds: runs repeat to the bit only where it is the same.

PyTorch and NumPy choose their kernels by processor and version, and sums in another order end in other digits. The
probe takes the operations of the engines, the server and the controller in plain PyTorch and NumPy, in the shapes of
the golden runs. It uses nothing of Wayfare, so a change of Wayfare never changes it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from wayfare.engine import Compute
from wayfare.threads import one_thread

_BATCH, _INPUTS, _HIDDEN, _CLASSES = 8, 784, 8, 10


@cache
def fingerprint() -> str:
    """Equal on machines that round alike."""
    sha = hashlib.sha256(f"{torch.__version__} {np.__version__} {torch.backends.cpu.get_cpu_capability()}".encode())
    rng = np.random.default_rng(0)
    with one_thread():
        for probe in (_perceptrons, _autograd, _convolutions, _vectors):
            for found in probe(rng):
                sha.update(found.detach().contiguous().numpy().tobytes())
        for array in _controller(rng):
            sha.update(array.tobytes())
    return sha.hexdigest()[:16]


def description() -> str:
    """The machine in words."""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{Compute().hardware}, {capability}, torch {torch.__version__}, numpy {np.__version__}"


def _drawn(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.uniform(-1, 1, shape).astype(np.float32))


def _perceptrons(rng: np.random.Generator) -> Iterator[Tensor]:
    """Stacks of one to six perceptrons, some steps by hand."""
    for count in range(1, 7):
        first, second = _drawn(rng, count, _HIDDEN, _INPUTS), _drawn(rng, count, _CLASSES, _HIDDEN)
        for _ in range(3):
            inputs = _drawn(rng, count, _BATCH, _INPUTS)
            signal = torch.baddbmm(_drawn(rng, count, 1, _HIDDEN), inputs, first.transpose(1, 2)).relu_()
            error = torch.bmm(signal, second.transpose(1, 2)).exp_()
            error.div_(error.sum(dim=2, keepdim=True)).mul_(0.1 / _BATCH)
            back = torch.bmm(error, second)
            second.baddbmm_(error.transpose(1, 2), signal, alpha=-1)
            first.baddbmm_(back.transpose(1, 2), inputs, alpha=-1).lerp_(_drawn(rng, *first.shape), 0.01)
        yield from (first, second, error.sum(dim=1))


def _autograd(rng: np.random.Generator) -> Iterator[Tensor]:
    """A perceptron as a module, trained and judged."""
    layers = [_drawn(rng, _HIDDEN, _INPUTS).requires_grad_(), _drawn(rng, _CLASSES, _HIDDEN).requires_grad_()]
    for samples in (_BATCH, 1000):
        logits = functional.linear(functional.linear(_drawn(rng, samples, _INPUTS), layers[0]).relu(), layers[1])
        loss = functional.cross_entropy(logits, torch.arange(samples) % _CLASSES)
        yield from (loss, *torch.autograd.grad(loss, layers))


def _convolutions(rng: np.random.Generator) -> Iterator[Tensor]:
    """Convolutions with batch normalisation, and as products."""
    for inputs, outputs, side in ((3, 2, 32), (2, 4, 32), (4, 8, 16), (8, 16, 8)):
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        stage = nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())
        kernel = _drawn(rng, outputs, inputs, 3, 3)
        with torch.no_grad():
            convolution.weight.copy_(kernel)
        signal = _drawn(rng, _BATCH, inputs, side, side).requires_grad_()
        out = functional.max_pool2d(stage(signal), 2)
        yield from (out, *torch.autograd.grad(out.square().sum(), [signal, *stage.parameters()]), *stage.buffers())
        rows = functional.unfold(signal, 3, padding=1)
        yield torch.bmm(kernel.flatten(1).expand(_BATCH, -1, -1), rows)
        yield from torch.var_mean(rows, dim=(0, 2))


def _vectors(rng: np.random.Generator) -> Iterator[Tensor]:
    """What devices and the server do with whole vectors."""
    one, other = _drawn(rng, 6370), _drawn(rng, 6370)
    kept = torch.topk(one.abs(), 500, sorted=False).indices.sort().values
    yield from (one.double().square().sum(), one.norm(), one.double().norm(), one.cumsum(0), other.sort().values, kept)
    yield from (one.index_add(0, kept, other[kept], alpha=-1 / 6), one.sub(other, alpha=1 / 6))
    yield from (torch.lerp(one, other, 0.3), one / (other.square().sqrt() + 1e-3), one.abs().log2(), other.exp())


def _controller(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Functions of numbers, one by one and in arrays."""
    values = rng.uniform(1e-3, 50, 1001)
    for function in (np.log, np.log2, np.log1p, np.exp, np.sqrt, np.expm1, np.sin, np.cos, np.cumsum, np.sum, np.mean):
        yield np.asarray(function(values))
    yield from (values**1.7, 10.0 ** (values / 10), np.asarray(values @ values))
    for alone in (math.log, math.log2, math.log1p, math.exp, math.expm1):
        yield np.array([alone(value) for value in values])
    yield np.array([math.pow(value, -0.5) for value in values])
