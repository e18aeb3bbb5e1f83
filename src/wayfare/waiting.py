"""Work that waits for numbers from a GPU, alone or several pieces in turns.

Such work is a generator that yields where it would wait. While one piece waits, the host runs the next one, and the
GPU has the kernels of all pieces in its queue. Pieces share nothing, so results do not depend on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import finalize

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]

# Pinned memory by shape, type and GPU, each with the event of the last copy to it, so that few transfers allocate any.
_free_places: dict[tuple[torch.Size, torch.dtype, torch.device], list[tuple[Tensor, torch.cuda.Event]]] = {}


def in_turns(pieces: Sequence[Steps[Result]], meanwhile: Callable[[], None] | None = None) -> list[Result]:
    """The results of all pieces, which run in turn, each up to its next wait. ``meanwhile`` is called before each."""
    results: dict[int, Result] = {}
    while len(results) < len(pieces):
        for number, piece in enumerate(pieces):
            if number not in results:
                if meanwhile is not None:
                    meanwhile()
                try:
                    next(piece)
                except StopIteration as end:
                    results[number] = end.value
    return [results[number] for number in range(len(pieces))]


def at_once(piece: Steps[Result]) -> Result:
    """The result of one piece, which waits wherever it has to."""
    return in_turns([piece])[0]


def fetched(numbers: Tensor) -> Callable[[], NDArray[Any]]:
    """Start to copy numbers to the host. The result waits for them, and for nothing that begins later."""
    if not numbers.is_cuda:
        return lambda: numbers.cpu().numpy()
    import torch

    free = _free_places.setdefault((numbers.shape, numbers.dtype, numbers.device), [])
    try:
        place = free.pop()
    except IndexError:
        # A GPU copies to pinned memory without the host.
        place = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True), torch.cuda.Event()
    here, copied = place
    here.copy_(numbers, non_blocking=True)
    copied.record(torch.cuda.current_stream(numbers.device))
    found: list[NDArray[Any]] = []

    def read() -> NDArray[Any]:
        if not found:
            copied.synchronize()
            found.append(here.numpy())
            # Views of an array keep it alive, so the place is free when nothing can read it.
            finalize(found[0], free.append, place)
        return found[0]

    return read
