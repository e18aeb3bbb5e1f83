"""Finds the form of inputs that a network accepts, by trying."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from wayfare.errors import InputError
from wayfare.learning.chance import seeded_generators
from wayfare.learning.models.trial import reject_parameters
from wayfare.learning.models.wrapped import Wrapped

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, slots=True)
class InputForm:
    """How samples are converted for a network; by default, not at all."""

    axes: Literal["given", "channels-last", "no-channel"] = "given"
    numbers: Literal["given", "whole", "real", "pixels"] = "given"

    @property
    def description(self) -> str:
        numbers = {"given": "as given", "whole": "as words", "real": "as real numbers", "pixels": "as pixels"}
        axes = {"given": "", "channels-last": ", channels first", "no-channel": ", with one channel"}
        return numbers[self.numbers] + axes[self.axes]

    def arranged(self, inputs: Tensor) -> Tensor:
        """Images in PyTorch's order, (n, channels, height, width)."""
        match self.axes:
            case "given":
                return inputs
            case "channels-last":
                return inputs.permute(0, 3, 1, 2)
            case "no-channel":
                return inputs.unsqueeze(1)

    def converted(self, inputs: Tensor, real: torch.dtype) -> Tensor:
        """Arranged inputs in the type that the network accepts; pixels between 0 and 1."""
        match self.numbers:
            case "given":
                return inputs.to(real) if inputs.is_floating_point() else inputs
            case "whole":
                return inputs.long()
            case "real":
                return inputs.to(real)
            case "pixels":
                return inputs.to(real) / 255


def _forms(inputs: Tensor) -> list[InputForm]:
    """Forms to try, in order: integers may be words or pixels, and a network accepts only one of them."""
    if inputs.is_floating_point():
        return [InputForm()]
    if inputs.dtype != torch.uint8:
        return [InputForm(), InputForm(numbers="real")]
    forms = [InputForm(), InputForm(numbers="whole")]
    if inputs.ndim == 4 and inputs.shape[3] in _CHANNELS and inputs.shape[1] not in _CHANNELS:
        forms.append(InputForm("channels-last", "pixels"))
    forms.append(InputForm(numbers="pixels"))
    if inputs.ndim == 3:
        forms.append(InputForm("no-channel", "pixels"))
    return forms


def find_form(model: Wrapped, inputs: Tensor, where: str) -> tuple[InputForm, Any]:
    """The first form that a network accepts in training mode, and its outputs for a few samples."""
    reject_parameters(model.module(), where)
    failures: dict[str, Exception] = {}
    for form in _forms(inputs):
        module = model.module().train()
        with torch.no_grad(), seeded_generators(inputs.device) as set_seed:
            set_seed(0)
            try:
                outputs = module(form.converted(form.arranged(inputs), torch.float32))
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                # Layers raise these for a wrong shape or type.
                failures[form.description] = error
            else:
                _reject_outputs(outputs, len(inputs), where)
                return form, outputs
    shape, kind = tuple(inputs.shape), str(inputs.dtype).removeprefix("torch.")
    reasons = "; ".join(f"{description}: {error}" for description, error in failures.items())
    raise InputError(
        f"{where}: the network does not accept a batch of shape {shape} and type {kind}; {reasons}"
    ) from next(iter(failures.values()))


def _reject_outputs(outputs: Any, samples: int, where: str) -> None:
    """Raise InputError for outputs that cannot be joined for a whole test set."""
    for leaf in tree_leaves(outputs):
        if not isinstance(leaf, Tensor):
            raise InputError(
                f"{where}: the network returns {type(leaf).__name__}; it must return a tensor, or tensors in a tuple, "
                "list or dictionary"
            )
        if leaf.dim() == 0 or len(leaf) % samples:
            raise InputError(
                f"{where}: the network returns a tensor of shape {tuple(leaf.shape)} for {samples} samples; its first "
                "axis must be that of the samples"
            )
