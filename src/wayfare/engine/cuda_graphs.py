"""A pool of slots on one GPU, each with a captured graph of one SGD step.

A step of one device is hundreds of small kernels, and launching them one by one takes longer than running them. A
graph is one launch. It reads its minibatch from an index table by a step counter, both on the GPU. So a burst is a
copy in, one replay per step, and a copy out, without waiting for the CPU. Slots run on their own streams, so that
one device uses the units that the small layers of another leave idle.

Bursts that no contact needs yet keep the GPU busy while the host handles a contact. Runs in threads of one process use
the same slots, so that bursts of one run fill the gaps of another.
"""

from __future__ import annotations

import itertools
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from wayfare.engine.base import (
    Burst,
    LocalTraining,
    Minibatches,
    Overlapping,
    Ready,
    Steering,
    directed,
    gradients_of,
    minibatches,
    split,
    steering_of,
)
from wayfare.engine.captured import captured, without_collection
from wayfare.engine.compute import gpu_lock
from wayfare.engine.unfolded import unfold_convolutions
from wayfare.errors import ScenarioError
from wayfare.learning.local_loss import loss_of
from wayfare.learning.models.base import entries, trainable
from wayfare.learning.models.tuned import Tuned
from wayfare.learning.models.wrapped import Wrapped
from wayfare.learning.tasks import Task
from wayfare.learning.tasks.base import Labelled
from wayfare.sharing import shared

# Compiling takes half a minute, which does not pay for a small network.
_COMPILED_FROM_PARAMETERS = 1_000_000
# The most steps of a burst that a slot loads at once.
_STEPS = 256
_WARM_UP_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How steps are computed. It affects only speed."""

    slots: int
    compiled: bool
    channels_last: bool
    unfold_pixels: int = 0  # up to this image size, convolutions are matrix products
    unfold_weight_pixels: int = 0  # up to this image size, only the gradients of kernels are


def best_recipe(training: LocalTraining) -> Recipe:
    """The fastest recipe measured for ResNet-9 on one H200 (benchmarks/NOTES.md)."""
    compute, large = training.compute, training.task.model.parameters >= _COMPILED_FROM_PARAMETERS
    if isinstance(training.task.model, Tuned):
        # Channels first: the reproducible kernels for depthwise convolutions with channels last are slow.
        strict = compute.precision == "fp32" and not compute.fast
        return Recipe(slots=10, compiled=False, channels_last=False, unfold_pixels=1024 if strict else 0)
    if isinstance(training.task.model, Wrapped):
        # A user's own network may look at a signal as rows, which other orders of its axes do not allow.
        return Recipe(slots=8, compiled=False, channels_last=False)
    if compute.precision == "fp32":
        # Without matrix units convolutions take nearly all of the time. Products are the fastest reproducible way.
        if compute.fast:
            return Recipe(slots=8, compiled=False, channels_last=False)
        return Recipe(slots=8, compiled=False, channels_last=True, unfold_pixels=1024)
    if compute.precision == "bf16":
        return Recipe(slots=4, compiled=large, channels_last=True)
    return Recipe(slots=10, compiled=large, channels_last=True, unfold_weight_pixels=64)


class CudaGraphs(Overlapping):
    """Runs bursts on captured graphs, several at a time."""

    def __init__(self, training: LocalTraining, recipe: Recipe | None = None) -> None:
        if training.compute.device.type != "cuda":
            raise ScenarioError("engine", "cuda_graphs", "needs a CUDA device; set `device=cuda`")
        self._training = training
        made = recipe or best_recipe(training)
        task = training.task.to(training.compute.device)
        self._slots = shared("slots", _captured(training, task, made), lambda: _make_slots(training, task, made))

    def launch(
        self,
        models: Sequence[Tensor],
        bursts: Sequence[Burst],
        after: Sequence[Ready | None],
        stays: Sequence[bool] = (),
    ) -> Sequence[Ready]:
        """Start bursts in their order, each on the slot with the fewest steps left. No model stays in a slot."""
        ends = [torch.cuda.Event() for _ in bursts]
        here = torch.cuda.current_stream(self._training.compute.device)
        prepared = [
            (minibatches(self._training, burst, pinned=True), steering_of(self._training, [burst])) for burst in bursts
        ]
        with gpu_lock:
            left = [slot.steps_left() for slot in self._slots]
            turns: dict[int, list[Iterator[None]]] = {}
            for model, burst, (batches, vectors), before, end in zip(
                models, bursts, prepared, after, ends, strict=True
            ):
                if burst.rounds:
                    number = min(range(len(left)), key=left.__getitem__)
                    left[number] += len(batches.samples)
                    turns.setdefault(number, []).append(self._slots[number].run(model, batches, vectors, before, end))
            for number in turns:
                self._slots[number].stream.wait_stream(here)
            # Interleave launches, so that every stream has work from the start.
            queues = [itertools.chain.from_iterable(turn) for turn in turns.values()]
            while queues:
                queues = [queue for queue in queues if next(queue, _DONE) is not _DONE]
        return ends


class _Slots(list["_Slot"]):
    """The slots of an engine. Unlike a plain list, they can be shared for as long as a run uses them."""


def _make_slots(training: LocalTraining, task: Task, recipe: Recipe) -> _Slots:
    def network() -> nn.Module:
        return _network(task, training.compute.device, recipe)

    loss: _Loss = partial(loss_of, task)
    if recipe.compiled and isinstance(task, Labelled):
        loss = _compiled_loss(task, network())
    return _Slots(_Slot(training, network(), loss) for _ in range(recipe.slots))


def _captured(training: LocalTraining, task: Task, recipe: Recipe) -> Hashable:
    return captured(training, task, recipe, training.learning_rate, training.schedule.is_constant)


_DONE = object()
_Loss: TypeAlias = Callable[[nn.Module, Tensor, Tensor | None, Tensor | None], Tensor]


def _network(task: Task, where: torch.device, recipe: Recipe) -> nn.Module:
    """The network of a task. The memory layout of its weights does not change between steps."""
    module = task.model.module()
    if recipe.unfold_pixels or recipe.unfold_weight_pixels:
        unfold_convolutions(module, recipe.unfold_pixels, recipe.unfold_weight_pixels)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            # Nothing reads the count of minibatches, which would cost one kernel per layer and step.
            layer.num_batches_tracked = None
    order = torch.channels_last if recipe.channels_last else torch.contiguous_format
    return module.to(device=where, memory_format=order).train()  # type: ignore[call-overload,no-any-return]


def _compiled_loss(task: Labelled, template: nn.Module) -> _Loss:
    """The loss with fused normalisation, ReLU and pooling, compiled once for all slots."""

    def of_logits(entries: dict[str, Tensor], inputs: Tensor, labels: Tensor, offset: Tensor | None) -> Tensor:
        logits = functional_call(template, entries, (inputs,))
        return functional.cross_entropy(logits if offset is None else logits + offset, labels)

    # Also tells the compiler.
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled())
    with warnings.catch_warnings():
        # The compiler warns about parts of PyTorch that it uses itself, here and at its first run.
        warnings.simplefilter("ignore")
        compiled = torch.compile(of_logits, dynamic=False)

    def loss(module: nn.Module, samples: Tensor, crops: Tensor | None, offset: Tensor | None) -> Tensor:
        entries = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        inputs = task.inputs(samples, crops)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        return compiled(entries, inputs, task.train_labels.index_select(0, samples), offset)

    return loss


class _Slot:
    """One network on the GPU, the minibatches of its burst, and graphs that copy in, step and copy out."""

    def __init__(self, training: LocalTraining, module: nn.Module, loss: _Loss) -> None:
        where, batch_size = training.compute.device, training.batches.batch_size
        self._training, self._module, self._loss = training, module, loss
        self._weights: list[Tensor] = list(trainable(module).values())
        self._entries = [entry.detach() for entry in entries(module)]
        # The weights as a stack of one device, sharing memory.
        self._stacks = [weight.detach().unsqueeze(0) for weight in self._weights]
        self._vector = torch.zeros(sum(entry.numel() for entry in self._entries), device=where)
        self._samples = torch.zeros(_STEPS, batch_size, dtype=torch.int64, device=where)
        self._crops = (
            torch.zeros(_STEPS, batch_size, 3, dtype=torch.int64, device=where) if training.batches.augment else None
        )
        self._shares = None if training.schedule.is_constant else torch.zeros(_STEPS, device=where)
        offsets = training.local_loss.offsets
        self._offset = None if offsets is None else torch.zeros_like(offsets[0])
        # The vectors of the descent, flat and in the layout of the weights.
        descent = training.descent
        self._vectors = Steering(
            *(
                [self._vector.new_zeros(training.task.model.parameters)] if used else None
                for used in (descent.pull, descent.corrected, descent.momentum)
            )
        )
        self._steering = self._vectors.each(lambda _: [torch.zeros_like(stack) for stack in self._stacks])
        self._step = torch.zeros(1, dtype=torch.int64, device=where)
        self.stream = torch.cuda.Stream(where)
        # Launched bursts: the end, the number of steps, and the vectors, which must stay until then.
        self._launched: deque[tuple[torch.cuda.Event, int, object]] = deque()
        with gpu_lock:
            self._capture()

    def steps_left(self) -> int:
        """The steps of bursts that have not ended."""
        while self._launched and self._launched[0][0].query():
            self._launched.popleft()
        return sum(steps for _, steps, _ in self._launched)

    def run(
        self, model: Tensor, batches: Minibatches, vectors: Steering, after: Ready | None, end: torch.cuda.Event
    ) -> Iterator[None]:
        """Launch a burst on a model; yield after every step, so that other slots can launch too."""
        steps = len(batches.samples)
        with torch.cuda.stream(self.stream):
            if after is not None:
                after.wait()
            self._vector.copy_(model)
            if self._offset is not None and batches.offset is not None:
                self._offset.copy_(batches.offset)
            for here, there in self._vectors.pairs_with(vectors):
                here[0].copy_(there[0])
            self._copy_in.replay()
        for first in range(0, steps, _STEPS):
            stop = min(first + _STEPS, steps)
            with torch.cuda.stream(self.stream):
                for table, rows in (
                    (self._samples, batches.samples),
                    (self._crops, batches.crops),
                    (self._shares, batches.shares),
                ):
                    if table is not None and rows is not None:
                        # From pinned memory, so the host does not wait for earlier bursts.
                        table[: stop - first].copy_(rows[first:stop], non_blocking=True)
                self._step.zero_()
            for _ in range(first, stop):
                with torch.cuda.stream(self.stream):
                    self._take_step.replay()
                yield
        with torch.cuda.stream(self.stream):
            self._copy_out.replay()
            model.copy_(self._vector)
            if vectors.velocity is not None and self._vectors.velocity is not None:
                vectors.velocity[0].copy_(self._vectors.velocity[0])
            end.record()
        self._launched.append((end, steps, (model, vectors)))

    def _capture(self) -> None:
        """Run everything a few times, so that libraries choose their kernels, then capture it."""
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream), self._training.compute.numerics(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(_WARM_UP_STEPS):
                self._one_step()
            self.stream.synchronize()
            self._copy_in = self._record(self._load)
            self._take_step = self._record(self._one_step)
            self._copy_out = self._record(self._read)
        torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)

    def _record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Other threads may allocate memory meanwhile.
        with without_collection(), torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            work()
        return graph

    def _one_step(self) -> None:
        """One step of the descent, on the minibatch given by the step counter."""
        samples = self._samples.index_select(0, self._step).view(-1)
        crops = None if self._crops is None else self._crops.index_select(0, self._step).view(-1, 3)
        gradients = gradients_of(self._loss(self._module, samples, crops, self._offset), self._weights)
        with torch.no_grad():
            stacks = [gradient.unsqueeze(0) for gradient in gradients]
            directions = directed(stacks, self._stacks, self._steering, self._training.descent)
            if self._shares is not None:
                share = self._shares.index_select(0, self._step).view(())
                directions = torch._foreach_mul(directions, share)
            torch._foreach_add_(self._stacks, directions, alpha=-self._training.learning_rate)
            self._step.add_(1)

    @torch.no_grad()
    def _load(self) -> None:
        """Copy flat vectors into the network and its steering."""
        sizes = [entry.numel() for entry in self._entries]
        for entry, piece in zip(self._entries, self._vector.split_with_sizes(sizes), strict=True):
            entry.copy_(piece.view(entry.shape))
        for (vector,), stacks in self._vectors.pairs_with(self._steering):
            for stack, piece in zip(stacks, self._pieces(vector), strict=True):
                stack.copy_(piece)

    @torch.no_grad()
    def _read(self) -> None:
        """Copy the network, and its velocity if any, into flat vectors."""
        pieces = self._vector.split_with_sizes([entry.numel() for entry in self._entries])
        for entry, piece in zip(self._entries, pieces, strict=True):
            piece.view(entry.shape).copy_(entry)
        if self._vectors.velocity is not None and self._steering.velocity is not None:
            pieces_of_velocity = self._pieces(self._vectors.velocity[0])
            for piece, stack in zip(pieces_of_velocity, self._steering.velocity, strict=True):
                piece.copy_(stack)

    def _pieces(self, vector: Tensor) -> list[Tensor]:
        return split(vector.unsqueeze(0), [weight.shape for weight in self._weights])
