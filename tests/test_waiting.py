"""Pieces of work that wait for a GPU in turns."""

from __future__ import annotations

import pytest
import torch

from wayfare.waiting import Steps, at_once, fetched, in_turns


def test_pieces_go_on_in_turns_and_results_keep_their_order() -> None:
    done: list[str] = []

    def piece(name: str, waits: int) -> Steps[str]:
        for number in range(waits):
            done.append(f"{name}{number}")
            yield
        done.append(name)
        return name.upper()

    assert in_turns([piece("a", 2), piece("b", 0), piece("c", 1)]) == ["A", "B", "C"]
    assert done == ["a0", "b", "c0", "a1", "c", "a"]
    assert at_once(piece("d", 3)) == "D"
    done.clear()
    in_turns([piece("a", 1), piece("b", 0)], lambda: done.append("-"))
    assert done == ["-", "a0", "-", "b", "-", "a"]


def test_an_error_of_a_piece_is_the_error_of_all() -> None:
    def failing() -> Steps[None]:
        yield
        raise ValueError("diverged")

    with pytest.raises(ValueError, match="diverged"):
        in_turns([failing(), failing()])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_fetched_numbers_are_those_of_the_time_of_the_call(device: str) -> None:
    numbers = torch.arange(5.0, device=device)
    read = fetched(numbers.clone())
    numbers += 1
    assert read().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert float(fetched(numbers.sum())()) == 15.0


@pytest.mark.gpu
def test_numbers_that_were_read_stay_as_long_as_anything_refers_to_them() -> None:
    places: set[int] = set()
    held = [fetched(torch.full((257,), float(number), device="cuda")) for number in range(5)]
    views = [read()[3:] for read in held]
    del held
    for number in range(20):
        read = fetched(torch.full((257,), -1.0 - number, device="cuda"))
        # It may be read again.
        assert read()[0] == read()[-1] == -1.0 - number
        places.add(read().ctypes.data)
    assert [set(view.tolist()) for view in views] == [{0.0}, {1.0}, {2.0}, {3.0}, {4.0}]
    assert len(places) <= 2
