"""Work that waits for numbers from a GPU, alone or several pieces in turns.

Such work is a generator that yields where it would wait. While one piece waits, the host runs the next one, and the
GPU has the kernels of all pieces in its queue. Pieces share nothing, so results do not depend on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

Result = TypeVar("Result")
Steps: TypeAlias = Generator[None, None, Result]


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

    # A GPU copies to pinned memory without the host.
    here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    here.copy_(numbers, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record(torch.cuda.current_stream(numbers.device))

    def read() -> NDArray[Any]:
        copied.synchronize()
        return here.numpy()

    return read
