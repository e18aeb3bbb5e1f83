"""Multi-head attention of n devices: projections per device, attention over all samples at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from wayfare.engine.traced.layers import linear
from wayfare.engine.traced.stepping import StackedStep

# Up to this many pairs of positions, products and a softmax are faster on a CPU than PyTorch's fused attention.
_FEW_PAIRS = 32 * 32
_LANES = 16


def multi_head(
    step: StackedStep,
    layer: nn.MultiheadAttention,
    weights: Mapping[str, Tensor],
    fused: bool,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """As `nn.MultiheadAttention`, whose parameters are given by name, (n, *shape); ``fused`` as in `linear`."""
    together = query is key and key is value
    if not layer.batch_first:
        query, key, value = (each.transpose(0, 1) for each in (query, key, value))
    kernels, bias = weights["in_proj_weight"], weights.get("in_proj_bias")
    mask = _joined(attn_mask, key_padding_mask, query)
    dropout = layer.dropout if layer.training else 0.0
    shares: Tensor | None = None
    plain = not dropout and not need_weights
    if together and plain and _are_few(query, query) and _is_narrow(query, layer.num_heads):
        packed = linear(step, 0, query, kernels, bias, fused=fused)
        rows: Tensor = _NarrowAttention.apply(packed, layer.num_heads, mask)  # type: ignore[no-untyped-call]
    else:
        if together:
            parts = linear(step, 0, query, kernels, bias, fused=fused).chunk(3, dim=-1)
        else:
            shifts = [None] * 3 if bias is None else bias.chunk(3, dim=1)
            inputs = zip((query, key, value), kernels.chunk(3, dim=1), shifts, strict=True)
            parts = tuple(linear(step, 0, signal, kernel, shift) for signal, kernel, shift in inputs)
        heads = [part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for part in parts]
        found, shares = attend(step, heads[0], heads[1], heads[2], mask, dropout, shares_too=need_weights)
        rows = found.transpose(1, 2).flatten(2)
    out = linear(step, 0, rows, weights["out_proj.weight"], weights.get("out_proj.bias"), fused=fused)
    if shares is not None and average_attn_weights:
        shares = shares.mean(dim=1)
    return out if layer.batch_first else out.transpose(0, 1), shares


def _are_few(query: Tensor, key: Tensor) -> bool:
    return not query.is_cuda and query.shape[-2] * key.shape[-2] <= _FEW_PAIRS


def _is_narrow(signal: Tensor, heads: int) -> bool:
    """Whether a CPU's vectors hold more numbers than a head has features, but not more than there are words."""
    return signal.shape[-1] // heads < _LANES <= signal.shape[-2]


class _NarrowAttention(torch.autograd.Function):
    """softmax(q k' / sqrt(d) + mask) v, (samples, words, heads d), from q, k and v side by side.

    Heads are stored as (d, words): a product runs along the last axis of its result, and fills vectors with words where
    d would leave them half empty. One copy joins the three gradients, and the softmax works in place, because new
    memory costs page faults.
    """

    @staticmethod
    def forward(ctx: Any, packed: Tensor, heads: int, mask: Tensor | None) -> Tensor:
        apart = packed.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 4, 1).contiguous()
        query, key, value = apart.flatten(1, 2).unbind()
        words, scale = packed.shape[1], query.shape[1] ** -0.5
        scores = packed.new_empty(len(query), words, words).baddbmm_(query.mT, key, beta=0, alpha=scale)
        if mask is not None:
            scores.unflatten(0, (-1, heads)).add_(mask)
        shares = torch.ops.aten._softmax.out(scores, -1, False, out=scores)
        ctx.save_for_backward(query, key, value, shares)
        return torch.bmm(value, shares.mT).view(len(packed), -1, words).mT.contiguous()

    @staticmethod
    def backward(ctx: Any, error: Tensor) -> tuple[Tensor, None, None]:
        query, key, value, shares = ctx.saved_tensors
        turned = error.mT.contiguous().view(query.shape)
        gradients = error.new_empty(3, *query.shape)
        torch.bmm(turned, shares, out=gradients[2])
        of_shares = torch.bmm(turned.mT, value)
        of_scores = torch.ops.aten._softmax_backward_data.out(
            of_shares, shares, -1, shares.dtype, grad_input=of_shares
        ).mul_(query.shape[1] ** -0.5)
        torch.bmm(key, of_scores.mT, out=gradients[0])
        torch.bmm(query, of_scores, out=gradients[1])
        return gradients.view(3, *error.mT.shape).permute(1, 3, 0, 2).flatten(2), None, None


def _joined(attn_mask: Tensor | None, padding: Tensor | None, like: Tensor) -> Tensor | None:
    """One additive mask; True in PyTorch's masks means that a pair is left out."""
    masks = [None if each is None else _additive(each, like) for each in (attn_mask, padding)]
    if masks[1] is not None:
        masks[1] = masks[1][:, None, None, :]
    found = [mask for mask in masks if mask is not None]
    return sum(found[1:], found[0]) if found else None


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)


def attend(
    step: StackedStep,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    *,
    shares_too: bool,
    scale: float | None = None,
) -> tuple[Tensor, Tensor | None]:
    """softmax(q k' / sqrt(d) + mask) v, and the softmax if asked for."""
    if not dropout and not shares_too and not _are_few(query, key):
        return functional.scaled_dot_product_attention(query, key, value, mask, scale=scale), None
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    shares = torch.softmax(scores if mask is None else scores + mask, dim=-1)
    if dropout:
        shares = shares * step.kept(shares, 0, dropout)
    return shares @ value, shares if shares_too else None


def scaled_dot_product(
    step: StackedStep,
    axis: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As PyTorch's function, with the draws of each device. In its masks True means that a pair takes part."""
    if enable_gqa:
        options: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "enable_gqa": True}
        return functional.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, **options)
    mask = None if attn_mask is None else _additive(~attn_mask if attn_mask.dtype == torch.bool else attn_mask, query)
    if is_causal:
        full = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        mask = _additive(full.triu_(1), query)
    return attend(step, query, key, value, mask, dropout_p, shares_too=False, scale=scale)[0]
