"""Pieces of work that wait for a GPU in turns."""

from __future__ import annotations

import pytest
import torch

from wayfare.waiting import Arriving, Piece, Steps, at_once, fetched


def counting(name: str, waits: int, done: list[str], arrived: set[str]) -> Steps[str]:
    for number in range(waits):
        done.append(f"{name}{number}")
        yield lambda: name in arrived
    done.append(name)
    return name.upper()


def test_a_piece_goes_on_when_its_numbers_are_here() -> None:
    done, arrived = list[str](), set[str]()
    piece = Piece(counting("a", 2, done, arrived))
    assert piece.go_on()
    assert not piece.go_on()
    assert done == ["a0"]
    arrived.add("a")
    assert piece.go_on()
    assert not piece.is_done
    assert piece.go_on()
    assert piece.is_done
    assert piece.result() == "A"
    assert not piece.go_on()
    assert done == ["a0", "a1", "a"]


def test_work_on_its_own_does_not_ask_whether_its_numbers_are_here() -> None:
    assert at_once(counting("d", 3, [], set())) == "D"


def test_an_error_of_a_piece_waits_for_its_result() -> None:
    def failing() -> Steps[None]:
        yield lambda: True
        raise ValueError("diverged")

    piece = Piece(failing())
    while piece.go_on():
        pass
    assert piece.is_done
    with pytest.raises(ValueError, match="diverged"):
        piece.result()


def test_what_follows_from_numbers_arrives_with_them() -> None:
    arrived: list[int] = []
    length = Arriving(lambda: "abc", lambda: bool(arrived)).then(len)
    assert not length.is_here()
    arrived.append(1)
    assert length.is_here()
    assert length() == 3


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_fetched_numbers_are_those_of_the_time_of_the_call(device: str) -> None:
    numbers = torch.arange(5.0, device=device)
    arriving = fetched(numbers.clone())
    numbers += 1
    assert arriving().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert arriving.is_here()
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
