"""GRU, LSTM and simple recurrent layers of n devices: one batched product per time step.

The gradients are written out. Autograd would store and visit a dozen small operations per time step, and add up the
gradients of weights step by step; here they are one product over the whole sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from wayfare.engine.traced.stepping import StackedStep, unfolded

# From this width, oneDNN's LSTM of one device is faster on a CPU than a product of all devices for every time step.
_FASTER_ALONE_FROM = 32


def is_faster_alone(layer: nn.RNNBase, *, cuda: bool) -> bool:
    wide = isinstance(layer, nn.LSTM) and layer.hidden_size >= _FASTER_ALONE_FROM
    return wide and not cuda and torch.backends.mkldnn.is_available()


def recurrent(
    step: StackedStep,
    layer: nn.RNNBase,
    inputs: Tensor,
    initial: Any,
    weights: Sequence[Sequence[Tensor]],
) -> tuple[Tensor, Any]:
    """The outputs and last states of a recurrent layer.

    ``weights`` holds, for every layer and direction, W_ih, W_hh, and b_ih and b_hh if there are biases.
    """
    count = step.count
    apart = unfolded(inputs, 0 if layer.batch_first else 1, count)
    # (n, time, batch, features)
    signal = apart.transpose(1, 2) if layer.batch_first else apart.transpose(0, 1)
    directions = 2 if layer.bidirectional else 1
    starts = _starts(layer, initial, count)
    ends: list[tuple[Tensor, ...]] = []
    for depth in range(layer.num_layers):
        outputs = []
        for direction in range(directions):
            number = depth * directions + direction
            ordered = signal.flip(1) if direction else signal
            out, end = _direction(layer, ordered, weights[number], starts[number] if starts else None)
            outputs.append(out.flip(1) if direction else out)
            ends.append(end)
        signal = torch.cat(outputs, dim=-1) if directions == 2 else outputs[0]
        if layer.dropout and layer.training and depth + 1 < layer.num_layers:
            # PyTorch draws for (time, batch, features).
            by_time = signal.transpose(0, 1).flatten(1, 2)
            signal = signal * unfolded(step.kept(by_time, 1, layer.dropout), 1, count).movedim(1, 0)
    states = tuple(torch.stack(each).flatten(1, 2) for each in zip(*ends, strict=True))
    out = signal.transpose(1, 2).flatten(0, 1) if layer.batch_first else signal.transpose(0, 1).flatten(1, 2)
    return out, states if isinstance(layer, nn.LSTM) else states[0]


def gru_cell(step: StackedStep, inputs: Tensor, state: Tensor, *weights: Tensor | None) -> Tensor:
    """One time step of a GRU, of samples (n B, features)."""
    gates, over, bias, start = _cell(step, inputs, state, weights)
    out: Tensor = _Gru.apply(gates, over, bias, start)  # type: ignore[no-untyped-call]
    return out.flatten(0, 2)


def lstm_cell(
    step: StackedStep, inputs: Tensor, states: tuple[Tensor, Tensor], *weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One time step of an LSTM, of samples (n B, features)."""
    gates, over, bias, start = _cell(step, inputs, states[0], weights)
    out, cell = _Lstm.apply(gates, over, bias, start, unfolded(states[1], 0, step.count))  # type: ignore[no-untyped-call]
    return out.flatten(0, 2), cell.flatten(0, 1)


def _cell(
    step: StackedStep, inputs: Tensor, state: Tensor, weights: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `_Gru` and `_Lstm` take, for one time step."""
    into, over, *biases = (*weights, None, None)[:4]
    assert into is not None
    assert over is not None
    gates = _projected(unfolded(inputs, 0, step.count), into, biases[0]).unsqueeze(1)
    bias = over.new_zeros(over.shape[:2]) if biases[1] is None else biases[1]
    return gates, over, bias, unfolded(state, 0, step.count)


def _starts(layer: nn.RNNBase, initial: Any, count: int) -> list[tuple[Tensor, ...]]:
    """The initial states of every layer and direction, (n, batch, features); empty if they are 0."""
    if initial is None:
        return []
    given = initial if isinstance(layer, nn.LSTM) else (initial,)
    return list(zip(*(unfolded(each, 1, count).unbind() for each in given), strict=True))


def _direction(
    layer: nn.RNNBase, signal: Tensor, weights: Sequence[Tensor], start: tuple[Tensor, ...] | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    count, time, batch, _ = signal.shape
    into, over, *biases = weights
    gates = _projected(signal.reshape(count, time * batch, -1), into, biases[0] if biases else None)
    gates = gates.view(count, time, batch, -1)
    bias = biases[1] if biases else over.new_zeros(over.shape[:2])
    hidden = over.shape[2]
    if start is None:
        start = tuple(signal.new_zeros(count, batch, hidden) for _ in range(2 if isinstance(layer, nn.LSTM) else 1))
    match layer:
        case nn.GRU():
            out: Tensor = _Gru.apply(gates, over, bias, start[0])  # type: ignore[no-untyped-call]
            return out, (out[:, -1],)
        case nn.LSTM():
            out, last = _Lstm.apply(gates, over, bias, *start)  # type: ignore[no-untyped-call]
            return out, (out[:, -1], last)
        case _:
            act = torch.relu if layer.mode == "RNN_RELU" else torch.tanh
            state, states = start[0], []
            for at in range(time):
                state = act(gates[:, at] + _projected(state, over, bias))
                states.append(state)
            return torch.stack(states, dim=1), (state,)


def _projected(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    kernel = weight.transpose(1, 2)
    return torch.bmm(rows, kernel) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, kernel)


class _Gru(torch.autograd.Function):
    """h_t = (1 - z) m + z h_{t-1}, with r, z = sigmoid(a + U h) and m = tanh(a + r (U h + b)).

    ``gates`` (n, time, batch, 3 H) are the projected inputs a of r, z and m, in PyTorch's order.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, over: Tensor, bias: Tensor, start: Tensor) -> Tensor:
        count, time, batch, width = gates.shape
        hidden = width // 3
        out = gates.new_empty(count, time, batch, hidden)
        opened = gates.new_empty(time, count, batch, 2 * hidden)
        fresh, recalled = gates.new_empty(2, time, count, batch, hidden)
        kernel, shift, state = over.transpose(1, 2), bias.unsqueeze(1), start
        for at in range(time):
            pre = torch.baddbmm(shift, state, kernel)
            gate = torch.add(gates[:, at, :, : 2 * hidden], pre[..., : 2 * hidden], out=opened[at]).sigmoid_()
            recalled[at] = pre[..., 2 * hidden :]
            torch.addcmul(gates[:, at, :, 2 * hidden :], gate[..., :hidden], recalled[at], out=fresh[at]).tanh_()
            state = torch.lerp(fresh[at], state, gate[..., hidden:])
            out[:, at] = state
        ctx.save_for_backward(over, start, out, opened, fresh, recalled)
        return out

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        over, start, out, opened, fresh, recalled = ctx.saved_tensors
        count, time, batch, hidden = out.shape
        of_gates = out.new_empty(count, time, batch, 3 * hidden)
        of_recurrent = out.new_empty(count, time, batch, 3 * hidden)
        carried = torch.zeros_like(start)
        for at in reversed(range(time)):
            gate, before = opened[at], out[:, at - 1] if at else start
            reset, keep = gate[..., :hidden], gate[..., hidden:]
            carried = carried + error[:, at]
            kept = carried * keep
            of_fresh = torch.ops.aten.tanh_backward(carried - kept, fresh[at])
            of_opened = torch.cat([of_fresh * recalled[at], carried * (before - fresh[at])], dim=-1)
            of_opened = torch.ops.aten.sigmoid_backward(of_opened, gate)
            of_gates[:, at, :, : 2 * hidden] = of_opened
            of_gates[:, at, :, 2 * hidden :] = of_fresh
            here = torch.cat([of_opened, of_fresh * reset], dim=-1)
            of_recurrent[:, at] = here
            carried = kept.baddbmm_(here, over)
        return of_gates, *_of_recurrent_weights(of_recurrent, out, start), carried


class _Lstm(torch.autograd.Function):
    """c_t = f c_{t-1} + i g and h_t = o tanh(c_t), with i, f, o = sigmoid(a + U h) and g = tanh(a + U h)."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, over: Tensor, bias: Tensor, start: Tensor, cell: Tensor
    ) -> tuple[Tensor, Tensor]:
        count, time, batch, width = gates.shape
        hidden = width // 4
        out = gates.new_empty(count, time, batch, hidden)
        opened = gates.new_empty(time, count, batch, width)
        cells = gates.new_empty(time + 1, count, batch, hidden)
        bounded = gates.new_empty(time, count, batch, hidden)
        cells[0] = cell
        kernel, shift, state = over.transpose(1, 2), bias.unsqueeze(1), start
        for at in range(time):
            gate = torch.add(gates[:, at], torch.baddbmm(shift, state, kernel), out=opened[at])
            gate[..., : 2 * hidden].sigmoid_()
            gate[..., 2 * hidden : 3 * hidden].tanh_()
            gate[..., 3 * hidden :].sigmoid_()
            enter, forget, new, leave = gate.split(hidden, dim=-1)
            torch.addcmul(forget * cells[at], enter, new, out=cells[at + 1])
            torch.tanh(cells[at + 1], out=bounded[at])
            state = leave * bounded[at]
            out[:, at] = state
        ctx.save_for_backward(over, start, out, opened, cells, bounded)
        return out, cells[time].clone()

    @staticmethod
    def backward(ctx: Any, error: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        over, start, out, opened, cells, bounded = ctx.saved_tensors
        count, time, batch, hidden = out.shape
        of_gates = out.new_empty(count, time, batch, 4 * hidden)
        carried, of_cell = torch.zeros_like(start), last
        for at in reversed(range(time)):
            gate = opened[at]
            enter, forget, new, leave = gate.split(hidden, dim=-1)
            carried = carried + error[:, at]
            of_cell = of_cell + torch.ops.aten.tanh_backward(carried * leave, bounded[at])
            of_opened = torch.cat([of_cell * new, of_cell * cells[at]], dim=-1)
            of_new = torch.ops.aten.tanh_backward(of_cell * enter, new)
            of_leave = torch.ops.aten.sigmoid_backward(carried * bounded[at], leave)
            of_opened = torch.ops.aten.sigmoid_backward(of_opened, gate[..., : 2 * hidden])
            here = torch.cat([of_opened, of_new, of_leave], dim=-1)
            of_gates[:, at] = here
            carried, of_cell = torch.bmm(here, over), of_cell * forget
        return of_gates, *_of_recurrent_weights(of_gates, out, start), carried, of_cell


def _of_recurrent_weights(of_gates: Tensor, out: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of W_hh and b_hh: products over all time steps at once."""
    count, time, batch, width = of_gates.shape
    before = torch.cat([start.unsqueeze(1), out[:, :-1]], dim=1).view(count, time * batch, -1)
    flat = of_gates.view(count, time * batch, width)
    return torch.bmm(flat.transpose(1, 2), before), flat.sum(dim=1)
