"""The page in a real browser, from its file, as a reader has it."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.browser import NARROW, WIDE, console_errors, open_page
from tests.report.conftest import HOSTILE
from tests.studies.small_study import write_study

from wayfare import mobility
from wayfare.contacts import draw_plan
from wayfare.mobility import Motion
from wayfare.records import find_runs, read_run
from wayfare.report.labels import number_text
from wayfare.report.write import write_report
from wayfare.scenario import Scenario, load
from wayfare.studies import compare, run
from wayfare.studies.study import load_study, plan_of
from wayfare.studies.sweeping import sweep

pytestmark = pytest.mark.system


def script(browser: Any, text: str, *values: object) -> Any:
    return browser.execute_script(text, *values)


def scrub(browser: Any, time_s: float) -> None:
    """Move the scrubber, as a hand would."""
    script(
        browser,
        "const scrub = document.getElementById('scrub'); scrub.value = arguments[0];"
        "scrub.dispatchEvent(new Event('input', { bubbles: true }))",
        time_s,
    )


def test_the_page_opens_without_a_complaint_and_fetches_nothing(browser: Any, page: Path) -> None:
    open_page(browser, page)
    drawn = script(browser, "return [...document.querySelectorAll('.plot')].filter((plot) => plot.offsetParent)"
                            ".map((plot) => plot.querySelectorAll('.main-svg').length)")  # fmt: skip
    assert len(drawn) == 6
    assert all(drawn)
    assert script(browser, "return performance.getEntriesByType('resource').map((entry) => entry.name)") == []
    assert console_errors(browser) == []


def test_figures_in_the_table_are_those_of_the_records(browser: Any, page: Path, comparison: Path) -> None:
    open_page(browser, page)
    rows = script(
        browser,
        "return [...document.querySelectorAll('#results tbody tr')].map((row) => "
        "[row.dataset.scheme, [...row.querySelectorAll('td')].map((cell) => cell.innerText)])",
    )
    assert [name for name, _ in rows] == ["mads", "afl", HOSTILE]
    found: dict[str, Any] = {}
    for folder in find_runs(comparison):
        with closing(sqlite3.connect(folder / "run.sqlite")) as database:
            scheme, parameters = (
                database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0].strip('"')
                for key in ("scheme", "parameters")
            )
            (score,) = database.execute(
                "SELECT avg(score) FROM (SELECT score FROM evaluations WHERE round > 0 ORDER BY round DESC LIMIT 5)"
            ).fetchone()
            numbers = database.execute(
                "SELECT sum(energy_joules), 100.0 * avg(entries) / ?, sum(completed AND entries > 0) / 6.0,"
                " sum(NOT completed AND energy_joules > 0) / 6.0, avg(staleness_rounds) FROM contacts",
                (int(parameters),),
            ).fetchone()
        found.setdefault(scheme, []).append((100 * score, *numbers))
    for name, cells in rows:
        first, second = np.array(found[name])
        score, energy, kept, uploads, failed, age = (first + second) / 2
        # Student's t with one degree of freedom.
        interval = 12.706 * np.std([first[0], second[0]], ddof=1) / np.sqrt(2)
        # A mean of thirds may lie on the edge between two roundings.
        assert [float(part) for part in cells[1].split(" ± ")] == pytest.approx([score, interval], abs=0.0501)
        assert cells[3].split()[0] == number_text(energy)
        assert cells[4:] == [f"{kept:.0f}", f"{uploads:.1f}", f"{failed:.1f}", f"{age:.0f}"]


def test_a_scheme_called_script_is_text(browser: Any, page: Path) -> None:
    open_page(browser, page)
    assert script(browser, "return window.hacked === undefined")
    shown = script(browser, "return document.querySelector('#results tbody tr:last-child th').innerText")
    assert shown.strip() == HOSTILE
    ticks = script(
        browser, "return [...document.querySelectorAll('#shares .ytick text')].map((tick) => tick.textContent)"
    )
    assert HOSTILE in ticks
    chips = script(
        browser, "return [...document.querySelectorAll('.legend button')].map((chip) => chip.innerText.trim())"
    )
    assert HOSTILE in chips
    assert script(browser, "return document.querySelector('#replay-scheme').options[2].text") == HOSTILE


def test_play_moves_the_devices_and_pause_stops_them(browser: Any, page: Path) -> None:
    open_page(browser, page)
    before = script(browser, "return [wayfareReplay.positions(), document.getElementById('map').toDataURL()]")
    browser.find_element("id", "play").click()
    time.sleep(1.0)
    assert browser.find_element("id", "play").text == "Pause"
    moved = script(browser, "return [wayfareReplay.positions(), document.getElementById('map').toDataURL()]")
    assert np.abs(np.array(moved[0]) - np.array(before[0])).max() > 1.0
    assert moved[1] != before[1]
    browser.find_element("id", "play").click()
    stopped = script(browser, "return wayfareReplay.state().time_s")
    time.sleep(0.3)
    assert script(browser, "return wayfareReplay.state().time_s") == stopped > 0


def test_devices_are_where_the_motion_has_them(browser: Any, page: Path, small: Scenario) -> None:
    open_page(browser, page)
    motion = mobility.from_spec(small.mobility, small.radio.range_m).draw(small.fleet.devices, small.duration_s, 0)
    assert isinstance(motion, Motion)
    for time_s in (0.0, 33.3, 250.0, 599.0):
        scrub(browser, time_s)
        shown = np.array(script(browser, "return wayfareReplay.positions()"))
        true = np.array([motion.positions_m(node, np.array([time_s]))[0] for node in range(motion.nodes)])
        assert np.abs(shown - true).max() < 0.1


def test_scrubbing_shows_the_contacts_of_the_plan(browser: Any, page: Path, small: Scenario) -> None:
    open_page(browser, page)
    plan = draw_plan(small, 0)
    middles = (plan.start_s + plan.end_s) / 2
    for time_s in [*middles[::3], *np.linspace(1, 599, 25)]:
        scrub(browser, time_s)
        true = sorted(plan.device[(plan.start_s <= time_s) & (time_s < plan.end_s)].tolist())
        assert sorted(script(browser, "return wayfareReplay.inContact()")) == true
        listed = browser.find_element("id", "now").text.splitlines()
        names = [line for line in listed if line.startswith("device")]
        assert len(names) == min(len(true), 5)
    assert len(plan) > 10


def test_ages_and_amounts_on_the_map_are_those_of_the_records(browser: Any, page: Path, comparison: Path) -> None:
    open_page(browser, page)
    for place, scheme in enumerate(("mads", "afl")):
        (run,) = comparison.glob(f"runs/{scheme}-seed0-*")
        record = read_run(run)
        contacts = record.contacts
        shown = script(
            browser,
            "const { world } = wayfareReplay, scheme = arguments[0], { contacts } = world;"
            "return [...contacts.start_s.keys()].map((contact) => { const made = world.outcome(scheme, contact);"
            "return [world.roundAt(contacts.start_s[contact]), contacts.device[contact], made.failed, made.kept,"
            "made.bits, world.age(scheme, contacts.device[contact], contacts.start_s[contact] - 1e-3)"
            " + world.roundAt(contacts.start_s[contact]) - world.roundAt(contacts.start_s[contact] - 1e-3)]; })",
            place,
        )
        rows = {(int(r), int(d)): i for i, (r, d) in enumerate(zip(contacts["round"], contacts["device"], strict=True))}
        assert {(round_, device) for round_, device, *_ in shown} == set(rows)
        seen = set()
        for round_, device, failed, kept, bits, age in shown:
            row = rows[round_, device]
            assert failed == (contacts["completed"][row] == 0)
            if not failed:
                assert kept == pytest.approx(contacts["entries"][row] / record.parameters, abs=1e-4)
                assert bits == pytest.approx(contacts["bits"][row], abs=1e-4 * contacts["bits"].max())
            # A second contact in a round finds the model of the first.
            if (round_, device) not in seen:
                assert age == contacts["staleness_rounds"][row]
            seen.add((round_, device))


def test_keys_play_and_move_in_time(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    open_page(browser, page)
    replay = browser.find_element("id", "replay")
    replay.send_keys(Keys.ARROW_RIGHT)
    assert script(browser, "return wayfareReplay.state().time_s") == 10
    replay.send_keys(Keys.ARROW_LEFT)
    assert script(browser, "return wayfareReplay.state().time_s") == 0
    replay.send_keys("n")
    assert len(script(browser, "return wayfareReplay.inContact()")) > 0
    replay.send_keys(Keys.SPACE)
    assert script(browser, "return wayfareReplay.state().playing")
    replay.send_keys(Keys.SPACE)
    assert not script(browser, "return wayfareReplay.state().playing")
    assert "in contact" in browser.find_element("id", "scrub").get_attribute("aria-valuetext")


def test_the_theme_follows_the_system_and_the_button(browser: Any, page: Path) -> None:
    ground = "return getComputedStyle(document.body).backgroundColor"
    open_page(browser, page, theme="dark")
    script(browser, "localStorage.clear()")
    open_page(browser, page, theme="dark")
    dark = script(browser, ground)
    line = "return document.querySelector('#backlog .scatterlayer path.js-line').style.stroke"
    dark_line = script(browser, line)
    browser.find_element("id", "theme").click()
    light = script(browser, ground)
    assert sum(map(int, dark.strip("rgb()").split(","))) < 150 < 600 < sum(map(int, light.strip("rgb()").split(",")))
    assert script(browser, line) != dark_line
    open_page(browser, page, theme="dark")
    assert script(browser, ground) == light
    script(browser, "localStorage.clear()")
    open_page(browser, page, theme="light")
    assert script(browser, ground) == light
    assert console_errors(browser) == []


@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen_and_text_is_readable(
    browser: Any, page: Path, width: int, theme: str
) -> None:
    open_page(browser, page, width=width, theme=theme)
    assert script(browser, "return document.documentElement.scrollWidth") <= width
    beyond = script(
        browser,
        "return [...document.querySelectorAll('main *')].filter((one) => one.offsetParent && !one.closest('svg, thead')"
        " && one.getBoundingClientRect().right > arguments[0] + 1).map((one) => one.tagName + '.' + one.className)",
        width,
    )
    assert beyond == []
    contrast = script(
        browser,
        """const light = (text) => { const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
             .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
             return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]; };
           const ground = (one) => { for (; one; one = one.parentElement) {
             const colour = getComputedStyle(one).backgroundColor;
             if (!/, 0\\)|transparent|color\\(/.test(colour)) return colour; } return 'rgb(255,255,255)'; };
           return [...document.querySelectorAll('h1, h2, h3, p, li, td, th, button, label, dt, dd, pre, nav a')]
             .filter((one) => one.offsetParent && one.innerText.trim() && getComputedStyle(one).opacity === '1')
             .map((one) => { const [a, b] = [light(getComputedStyle(one).color), light(ground(one))];
               return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), one.tagName + ' ' + one.innerText]; })
             .filter(([ratio]) => ratio < 4.5)""",
    )
    assert contrast == []


def test_a_chip_hides_its_scheme_in_every_chart(browser: Any, page: Path) -> None:
    open_page(browser, page)
    lines = "return document.querySelectorAll('#backlog .scatterlayer .trace').length"
    assert script(browser, lines) == 3
    script(browser, "document.querySelector('#curves-section .legend button').click()")
    assert script(browser, lines) == 2
    pressed = script(browser, "return [...document.querySelectorAll('.legend button:first-child')]"
                              ".map((chip) => chip.getAttribute('aria-pressed'))")  # fmt: skip
    assert set(pressed) == {"false"}


@pytest.mark.parametrize("across", ["time_s", "energy_joules", "bits"])
def test_curves_can_be_drawn_against_every_cost(browser: Any, page: Path, across: str) -> None:
    open_page(browser, page)
    title = "return document.querySelector('#curves .xtitle').textContent"
    before = script(browser, title)
    script(browser, f"document.querySelector('#curve-x input[value={across}]').click()")
    assert script(browser, title) != before
    assert console_errors(browser) == []


def test_the_page_of_a_study_follows_the_chosen_point(browser: Any, study: Path, tmp_path: Path) -> None:
    open_page(browser, write_report(study, tmp_path / "study.html")[0], width=NARROW)
    assert script(browser, "return document.querySelectorAll('#study-plot .scatterlayer .trace').length") == 2
    names = script(browser, "return [...document.getElementById('point').options].map((point) => point.text)")
    assert names == ["speed_mps 10", "speed_mps 20"]
    line = "return document.querySelector('#backlog .scatterlayer path.js-line').getAttribute('d')"
    before = script(browser, line)
    choose = (
        "const point = document.getElementById('point'); point.value = '1'; point.dispatchEvent(new Event('change'))"
    )
    script(browser, choose)
    assert script(browser, line) != before
    assert script(browser, "return document.documentElement.scrollWidth") <= NARROW
    assert script(browser, "return document.querySelectorAll('#theory-bound .scatterlayer .trace').length") == 5
    assert "at speed_mps 10" in browser.find_element("id", "map-note").text
    assert console_errors(browser) == []


@pytest.fixture(scope="module")
def wide_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a study with more columns than a screen has room for, and a scheme with a long name."""
    folder = tmp_path_factory.mktemp("wide")
    counts = '"uploads_per_device", "failed_uploads_per_device", "staleness_rounds"'
    metrics = f'metrics = ["accuracy", "energy_joules", "budget_joules", "bits", "kept_fraction", {counts}]'
    file = write_study(folder, rounds=20, seeds=2, more=metrics)
    file.write_text(file.read_text().replace('"afl"', '"fedmobile:billed:fitting:paced"'))
    return write_report(sweep(load_study(str(file)), out=folder, jobs=1).results.folder, folder / "wide.html")[0]


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_study_with_many_columns_fits_the_screen(browser: Any, wide_study: Path, width: int) -> None:
    open_page(browser, wide_study, width=width)
    assert script(browser, "return document.documentElement.scrollWidth") <= width
    beyond = script(
        browser,
        "return [...document.querySelectorAll('table.figures td, table.figures tbody th')]"
        ".filter((cell) => cell.getBoundingClientRect().right > arguments[0] + 1).map((cell) => cell.innerText)",
        width,
    )
    assert beyond == []
    labels = script(browser, "return [...document.querySelectorAll('#results td')].map((cell) => cell.dataset.label)")
    assert {"accuracy, %", "energy, J", "sent, Mbit", "age, rounds", "reached 99 %"} <= set(labels)
    claim = script(browser, "return document.querySelector('h1').innerText")
    assert re.search(r" has the best accuracy (within the energy budget )?at (\d of|all) 2 points$", claim)
    assert script(browser, "return document.querySelectorAll('.lede li').length") <= 3
    assert console_errors(browser) == []


def test_broken_lines_lie_on_whole_ones(browser: Any, tmp_path: Path) -> None:
    small = {"rounds": 20, "fleet": {"devices": 4}, "learning": {"hidden": [8]}}
    grid = {"mobility": {"speed_mps": [10.0, 20.0]}}
    study = {"name": "order", "schemes": ["optimal", "mads"], "seeds": 1, "set": small, "grid": grid}
    folder = sweep(plan_of(study), out=tmp_path, jobs=1).results.folder
    open_page(browser, write_report(folder, tmp_path / "order.html")[0])
    for plot in ("study-plot", "curves"):
        names = script(browser, f"return document.getElementById('{plot}').data.map((trace) => trace.name)")
        assert names[-1] == "Optimal"
    assert console_errors(browser) == []


def test_points_with_long_names_stand_below_each_other(browser: Any, tmp_path: Path) -> None:
    names = ["a radio that reaches far", "<b>a radio that does not</b>"]
    paired = [{"label": name, "radio": {"range_m": 100.0 - 10 * place}} for place, name in enumerate(names)]
    small = {"rounds": 20, "fleet": {"devices": 4}, "learning": {"hidden": [8]}}
    study = {"name": "named", "schemes": ["mads", "afl"], "seeds": 2, "set": small, "paired": paired}
    folder = sweep(plan_of(study), out=tmp_path, jobs=1).results.folder
    write_report(folder, tmp_path / "page")
    open_page(browser, tmp_path / "page" / "index.html")
    ticks = script(
        browser, "return [...document.querySelectorAll('#study-plot .ytick')].map((tick) => tick.textContent)"
    )
    assert ticks == names
    lanes = script(
        browser, "return document.getElementById('study-plot').data.map((trace) => [trace.name, ...trace.y])"
    )
    assert lanes == [["MADS", 1 / 3, 1 + 1 / 3], ["AFL", 2 / 3, 1 + 2 / 3]]
    assert console_errors(browser) == []


def test_a_trace_is_replayed_with_its_names_and_absences(browser: Any, small: Scenario, tmp_path: Path) -> None:
    rows = ["time,id,x,y"]
    for t in range(0, 201, 10):
        rows.append(f"{t},tower,0,0")
        if t <= 180:
            rows.append(f"{t},b<us>,{400 - abs(t % 100 - 50) * 16},5")
        if t <= 100:
            rows.append(f"{t},van,{-500 + 10 * t},-5")
    (tmp_path / "fixes.csv").write_text("\n".join(rows))
    trace = load(
        "fashion-small",
        [
            "rounds=20",
            "fleet.devices=2",
            "learning.hidden=[4]",
            "mobility.model=trace",
            "mobility.server=tower",
            f"mobility.file={tmp_path / 'fixes.csv'}",
        ],
    )
    folder = run(trace, "mads", out=tmp_path / "runs").folder
    open_page(browser, write_report(folder, tmp_path / "trace.html")[0])
    scrub(browser, 25)
    assert script(browser, "return wayfareReplay.positions().length") == 3
    assert "b<us>" in browser.find_element("id", "now").text
    ticks = browser.find_elements("css selector", "#holdings .xtick")
    assert [tick.text for tick in ticks if tick.text] == ["b<us>", "van"]
    scrub(browser, 150)
    assert script(browser, "return wayfareReplay.positions().filter((place) => place === null).length") == 1
    assert "The map is empty" not in browser.find_element("id", "map-note").text
    scrub(browser, 195)
    assert browser.find_element("id", "map-note").text.startswith("The map is empty: the trace has no position of any")
    assert "One seed is one world" in browser.find_element("css selector", ".warning").text
    assert console_errors(browser) == []
    (tmp_path / "fixes.csv").unlink()
    open_page(browser, write_report(folder, tmp_path / "trace.html")[0])
    assert "No map: " in browser.find_element("id", "replay-unavailable").text
    assert console_errors(browser) == []


def test_contacts_without_positions_are_drawn_as_a_ring(browser: Any, small: Scenario, tmp_path: Path) -> None:
    ring = load("fashion-small", ["rounds=30", "fleet.devices=5", "learning.hidden=[4]", "mobility.model=exponential"])
    folder = compare(ring, ["mads"], seeds=1, jobs=1, out=tmp_path).folder
    open_page(browser, write_report(folder, tmp_path / "ring.html")[0], width=NARROW)
    assert "Its contacts have no positions" in browser.find_element("id", "map-note").text
    browser.find_element("id", "next").click()
    assert len(script(browser, "return wayfareReplay.inContact()")) == 1
    assert console_errors(browser) == []
