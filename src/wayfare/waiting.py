"""Work that waits for numbers from a GPU or from another process.

Such work is a generator. Where it would wait, it yields a function that tells whether its numbers have arrived. While
one piece waits, the host continues another, and the GPU has the kernels of all pieces in its queue. Pieces share
nothing, so results do not depend on their order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from weakref import finalize

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

Result = TypeVar("Result")
Other = TypeVar("Other")
IsHere: TypeAlias = Callable[[], bool]
Steps: TypeAlias = Generator[IsHere, None, Result]

# Pinned memory by shape, type and GPU, each with the event of the last copy to it, so that few transfers allocate any.
_free_places: dict[tuple[torch.Size, torch.dtype, torch.device], list[tuple[Tensor, torch.cuda.Event]]] = {}
# Streams by GPU and handle. PyTorch never destroys one.
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}


def always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Arriving(Generic[Result]):
    """Something under way. A call waits for it."""

    read: Callable[[], Result]
    is_here: IsHere = always

    def __call__(self) -> Result:
        return self.read()

    def then(self, work: Callable[[Result], Other]) -> Arriving[Other]:
        """What a function makes of it, when it is read."""
        return Arriving(lambda: work(self.read()), self.is_here)


class Piece(Generic[Result]):
    """A piece of work and how far it is. An error waits for whoever wants the result."""

    def __init__(self, steps: Steps[Result]) -> None:
        self._steps, self._is_here = steps, always
        self._results: list[Result] = []
        self._error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return bool(self._results) or self._error is not None

    def go_on(self) -> bool:
        """Run up to the next wait if the numbers for it have arrived. Return whether it ran."""
        if self.is_done or not self._is_here():
            return False
        try:
            self._is_here = next(self._steps)
        except StopIteration as end:
            self._results.append(end.value)
        except Exception as error:
            self._error = error
        return True

    def result(self) -> Result:
        """The result of a piece that is done."""
        if self._error is not None:
            raise self._error
        return self._results[0]


def at_once(steps: Steps[Result]) -> Result:
    """The result of work on its own, which waits wherever it has to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def current_stream(where: torch.device) -> torch.cuda.Stream:
    """The stream of `torch.cuda.current_stream`, which would make a new object of it in every call."""
    import torch

    gpu = torch.cuda.current_device() if where.index is None else where.index
    key = gpu, torch._C._cuda_getCurrentRawStream(gpu)
    found = _streams.get(key)
    if found is None:
        found = _streams[key] = torch.cuda.current_stream(gpu)
    return found


def fetched(numbers: Tensor) -> Arriving[NDArray[Any]]:
    """Start to copy numbers to the host. Reading them waits for the copy, and for nothing that begins later."""
    if not numbers.is_cuda:
        return Arriving(lambda: numbers.cpu().numpy())
    import torch

    free = _free_places.setdefault((numbers.shape, numbers.dtype, numbers.device), [])
    try:
        place = free.pop()
    except IndexError:
        # A GPU copies to pinned memory without the host.
        place = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True), torch.cuda.Event()
    here, copied = place
    here.copy_(numbers, non_blocking=True)
    copied.record(current_stream(numbers.device))
    found: list[NDArray[Any]] = []

    def read() -> NDArray[Any]:
        if not found:
            copied.synchronize()
            found.append(here.numpy())
            # Views of an array keep it alive, so the place is free when nothing can read it.
            finalize(found[0], free.append, place)
        return found[0]

    return Arriving(read, lambda: bool(found) or copied.query())
