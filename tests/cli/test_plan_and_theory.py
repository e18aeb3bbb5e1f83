"""`wayfare plan` and `wayfare theory` as a user types them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli.conftest import Finished
from tests.conftest import SMALL
from wayfare.cli.plan_tables import print_forecasts
from wayfare.theory.ask import plan


def test_plan_says_what_gets_through_and_what_to_set(wayfare_command: Callable[..., Finished]) -> None:
    done = wayfare_command("plan", "--set", "rounds=200", "--set", "fleet.energy_total_joules=100")
    assert done.code == 0
    for text in ("k/s", "control.weight=auto", "best speed", "dense uploads", "warning"):
        assert text in done.out


def test_plan_for_programs(wayfare_command: Callable[..., Finished]) -> None:
    done = wayfare_command(
        "plan", "--speed", "12", "--parameters", "6000000", "--budget-joules", "100", "--set", "radio.bandwidth_hz=1e6",
        "--set", "rounds=300", "--json",
    )  # fmt: skip
    assert done.code == 0
    (plan,) = done.json["plans"]
    assert plan["parameters"] == 6_000_000
    assert plan["budget_joules"] == pytest.approx(2000.0)
    assert plan["best_speed"]["own_speed_mps"] == 12.0
    assert 0 < plan["rehearsed"]["kept_fraction"] <= 1
    assert plan["recommended"]["weight"] == "auto"
    assert plan["warnings"]


def test_plan_compares_speeds_in_one_table(wayfare_command: Callable[..., Finished]) -> None:
    done = wayfare_command(
        "plan", "--speed", "5", "--speed", "40", "--set", "rounds=200", "--set", "control.weight=auto"
    )
    assert done.code == 0
    assert "bound" in done.out
    first = [line.split()[0] for line in done.out.splitlines() if line.startswith(" ") and len(line.split()) >= 11]
    assert [word for word in first if word[0].isdigit()] == ["5", "40"]


def test_a_slow_fleet_has_all_its_numbers_in_the_table(wayfare_command: Callable[..., Finished]) -> None:
    done = wayfare_command("plan", "paper-cifar10-waypoint", "--speed", 1, "--speed", 20, "--parameters", 6_568_650)
    assert done.code == 0
    assert "…" not in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_what_holds_at_several_speeds_is_said_once_and_names_them_all(wayfare_command: Callable[..., Finished]) -> None:
    speeds = [word for speed in (5, 10, 20) for word in ("--speed", speed)]
    done = wayfare_command("plan", *speeds)
    assert done.code == 0
    told = [part.strip() for part in " ".join(done.out.split()).split("warning ")[1:]]
    assert [line.split(" m/s")[0] for line in told if "exponential model" in line] == ["5, 10, 20"]
    assert [line.split(":")[0] for line in told if "Contacts last" in line] == ["5, 10 m/s (numbers for 5)"]
    # Both begin with the same words, and are about different things.
    assert [line.split(":")[0] for line in told if "Contacts can use" in line] == ["5 m/s"]


def test_different_warnings_that_begin_alike_are_not_merged() -> None:
    found = plan("fashion-small", ["rounds=200"], seed=0)
    assert found.rehearsed is not None
    idle, wasteful = (
        replace(found, rehearsed=replace(found.rehearsed, energy_joules=factor * found.budget_joules))
        for factor in (0.01, 2.0)
    )
    console = Console(width=500, file=StringIO())
    with console.capture() as said:
        print_forecasts(console, [idle, wasteful])
    assert "20 m/s: V = 0.005 leaves " in said.get()
    assert "20 m/s: V = 0.005 exceeds the budget by 100 %" in said.get()


def test_plan_says_no_more_of_the_automatic_weight_than_is_so(wayfare_command: Callable[..., Finished]) -> None:
    done = wayfare_command("plan", "--speed", 5)
    assert "--set control.weight=auto uses all usable energy within the budget\n" in done.out


ASSUMED = {
    "free_downlink": "Downloads of the global model (2.71 Mbit) are free.",
    "unshared_band": "Devices in range do not share the band: each uses all 0.015 MHz.",
    "free_computing": "Computing takes no time and no energy: budgets cover uploads only.",
}


@pytest.mark.parametrize("speeds", [[], ["--speed", 5, "--speed", 20]])
def test_plan_says_what_is_free(wayfare_command: Callable[..., Finished], speeds: list[object]) -> None:
    done = wayfare_command("plan", "--set", "rounds=200", *speeds)
    assert [line.split("  ", 1)[1] for line in done.out.splitlines() if line.startswith("assumption")] == [
        *ASSUMED.values()
    ]


def test_plan_says_what_is_free_even_without_any_contact(wayfare_command: Callable[..., Finished]) -> None:
    lonely = [word for field in ("width_m", "height_m") for word in ("--set", f"mobility.{field}=1e6")]
    for speeds in ([], ["--speed", 1, "--speed", 2]):
        done = wayfare_command("plan", *lonely, "--set", "rounds=1", "--set", "fleet.devices=1", *speeds)
        assert done.code == 0
        assert done.out.count("assumption  ") == 3


def test_plan_says_what_the_downlink_would_take_and_how_contacts_overlap(
    wayfare_command: Callable[..., Finished],
) -> None:
    words = ("plan", "--set", "rounds=200", "--server-power-watts", 0.2, "--server-power-watts", 20)
    told = wayfare_command(*words, "--json")
    assert told.code == 0
    (plan,) = told.json["plans"]
    assert {each["kind"]: each["text"] for each in plan["assumptions"]} == ASSUMED
    assert [each["server_power_watts"] for each in plan["downlinks"]] == [0.2, 20.0]
    weak, strong = (each["downlink_whole_model_share"] for each in plan["downlinks"])
    # At the power of the devices the channel carries as much down as up.
    assert weak == plan["full_power"]["dense_chance"]
    assert weak < strong < 1
    assert plan["downlink_model_bits"] == 84_618 * 32
    overlap, devices = (
        plan["contacts"][name] for name in ("overlapping_contact_time_share", "mean_devices_in_contact")
    )
    alone = wayfare_command(*words).out
    for label, number in (
        ("complete downloads, 0.2 W, %", f"{100 * weak:.3g}"),
        ("complete downloads, 20 W, %", f"{100 * strong:.3g}"),
        ("contact time with others", f"{100 * overlap:.1f} %"),
        ("devices in contact, when any", f"{devices:.3g} on average"),
        ("upload capacity, Mbit/contact", f"{plan['full_power']['mean_contact_bits'] / 1e6:.3g}"),
    ):
        (line,) = [line for line in alone.splitlines() if label in line]
        assert f" {number} " in f"{line} "

    table = wayfare_command(*words, "--speed", 20, "--speed", 40).out
    row = f"20 {100 * weak:.3g} / {100 * strong:.3g} {100 * overlap:.1f} % {devices:.3g}"
    assert row in [" ".join(line.split()) for line in table.splitlines()]
    assert "at 0.2 / 20 W" in table


def test_the_page_on_planning_shows_what_plan_prints(wayfare_command: Callable[..., Finished]) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/planning.md"
    section = page.read_text(encoding="utf-8").split("## What is free\n")[1].split("\n## ")[0]
    shown = re.findall(r"^    wayfare (plan .+)\n\n((?:    .+\n)+)", section, re.MULTILINE)
    assert len(shown) == 2
    for command, block in shown:
        printed = iter([line.rstrip() for line in wayfare_command(*command.split()).out.splitlines()])
        for line in block.splitlines():
            assert line == "    ..." or line[4:] in printed, line


def test_the_table_of_speeds_breaks_between_the_powers_of_many_servers(
    wayfare_command: Callable[..., Finished],
) -> None:
    powers = [word for power in range(1, 25) for word in ("--server-power-watts", 1.5 * power)]
    done = wayfare_command("plan", "--set", "rounds=100", "--speed", 5, "--speed", 20, *powers)
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    words = done.out.split()
    assert {f"{1.5 * power:g}" for power in range(1, 25)} <= set(words)
    assert not any("…" in word for word in words)


def test_plan_takes_a_saved_plan_and_a_run(wayfare_command: Callable[..., Finished], tmp_path: Path) -> None:
    saved = tmp_path / "plan.npz"
    sets = [word for override in SMALL for word in ("--set", override)]
    assert wayfare_command("contacts", "fashion-small", *sets, "--save", saved).code == 0
    run = wayfare_command("run", *sets, "--out", tmp_path, "--json")
    assert run.code == 0
    done = wayfare_command("plan", saved, "--like", run.json["folder"], "--json")
    assert done.code == 0
    (plan,) = done.json["plans"]
    assert plan["devices"] == 6
    assert plan["fixed_weight"]["known"] is True


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "--speed", "-3"], "speed = -3.0: must be above 0"),
        (["plan", "--speed", "abc"], "error: --speed = 'abc': "),
        (["plan", "--range-m", "0"], "error: --range-m = 0: "),
        (["paper", "fig8b", "--seeds", "0"], "error: --seeds = 0: "),
        (["plan", "--parameters", "1"], "parameters = 1: must be at least 2"),
        (["plan", "--budget-joules", "0"], "budget_joules = 0.0: must be above 0"),
        *(
            (
                ["plan", "--server-power-watts", "1", "--server-power-watts", value],
                f"error: server_power_watts = {float(value)}: must be above 0 and at most 1e+15",
            )
            for value in ("0", "-1", "nan", "inf", "1e16")
        ),
        (["plan", "--server-power-watts", "abc"], "error: --server-power-watts = 'abc': "),
        (["plan", "nowhere"], "neither a preset"),
        (["plan", "--scheme", "magic"], "schemes = 'magic': unknown"),
        (["plan", "--like", "nowhere"], "not a run"),
        (["plan", "paper-cifar10-exponential", "--speed", "3"], "speed_mps"),
        (["theory", "speed", "--from", "5", "--to", "2"], "--from = 5.0: must be above 0 and below --to (2)"),
        (["theory", "contact", "--rate-mbps", "0"], "--rate-mbps = 0.0: must be above 0"),
        (["theory", "inter-contact", "--parameters", "0"], "--parameters = 0: must be at least 2"),
        (["theory", "run", "nowhere"], "neither a preset"),
    ],
)
def test_bad_input_ends_with_2_and_one_message(
    wayfare_command: Callable[..., Finished], words: list[str], said: str
) -> None:
    done = wayfare_command(*words)
    assert done.code == 2
    assert said in " ".join(done.err.split())


@pytest.mark.parametrize("parameter", ["speed", "contact", "inter-contact"])
def test_theory_prints_draws_and_tells_programs(
    wayfare_command: Callable[..., Finished], tmp_path: Path, parameter: str
) -> None:
    picture = tmp_path / "bound.png"
    done = wayfare_command("theory", parameter, "--from", "10", "--to", "100", "--plot", picture, "--json")
    assert done.code == 0
    found = done.json
    assert set(found["curves"]) == {"printed", "corrected", "sharp"}
    for dot in found["monte_carlo"]:
        place = min(range(len(found["values"])), key=lambda i: abs(found["values"][i] - dot["at"]))
        assert dot["divergence"] <= found["curves"]["sharp"]["factor"][place]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_theory_speed_marks_both_minima(wayfare_command: Callable[..., Finished]) -> None:
    done = wayfare_command("theory", "speed")
    assert done.code == 0
    assert "…" not in done.out  # every number fits into 80 columns
    best = {
        line.split()[0]: float(line.split()[3].replace(",", ""))
        for line in done.out.splitlines()
        if " minimum at " in line
    }
    assert best["printed"] > 1000
    assert 6 <= best["corrected"] <= 30
    assert 6 <= best["sharp"] <= 30


def test_theory_run_estimates_constants_and_draws_the_bound(
    wayfare_command: Callable[..., Finished], tmp_path: Path
) -> None:
    sets = [word for override in SMALL for word in ("--set", override)]
    picture = tmp_path / "run.svg"
    done = wayfare_command("theory", "run", *sets, "--plot", picture)
    assert done.code == 0
    assert "L, from secants" in done.out
    assert "<svg" in picture.read_text(encoding="utf-8")
