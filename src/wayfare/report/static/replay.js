"use strict";
/* The controls of the replay: play and pause, scrubber, speed, keys. */
(() => {
  const byId = (id) => document.getElementById(id);
  const replay = Page.replay;
  if (replay.unavailable) {
    byId("replay").hidden = true;
    byId("replay-unavailable").hidden = false;
    byId("replay-unavailable").textContent = `No map: ${replay.unavailable}`;
    return;
  }
  const world = makeWorld(replay), painter = makePainter(world);
  const state = { time_s: 0, playing: false, speed: 20, scheme: 0, last: null };
  const STEP_S = 10;

  function clockText(time_s) {
    const whole = Math.floor(time_s), hours = Math.floor(whole / 3600), minutes = Math.floor((whole % 3600) / 60), seconds = whole % 60;
    const two = (number) => String(number).padStart(2, "0");
    return hours ? `${hours} h ${two(minutes)} min ${two(seconds)} s` : `${minutes} min ${two(seconds)} s`;
  }
  function bitsText(bits) { return bits >= 1e6 ? `${(bits / 1e6).toFixed(2)} Mbit` : `${(bits / 1e3).toFixed(0)} kbit`; }

  const shortened = replay.until_s < replay.duration_s ? ` The map shows the first ${clockText(replay.until_s)} of ${clockText(replay.duration_s)}.` : "";
  const where = `World of seed ${replay.seed}${replay.point ? ` at ${replay.point}` : ""}`;
  const mapNote = (world.motion
    ? `${where}; the disc is the radio range (${replay.range_m} m).`
    : `${where}. Its contacts have no positions, so devices form a ring and distances have no meaning.`) + shortened;

  let listed = "";
  function list(active) {
    // Do not rewrite an unchanged list in every frame, which would burden screen readers and the layout.
    const key = `${state.scheme}:${active.join()}`;
    if (key === listed) return;
    listed = key;
    const rows = active.slice(0, 5).map((contact) => {
      const outcome = world.outcome(state.scheme, contact), row = document.createElement("li"), who = document.createElement("span"), what = document.createElement("span");
      who.textContent = world.name(world.contacts.device[contact]);
      what.textContent = outcome.failed || outcome.kept === 0 ? painter.amount(outcome) : `${painter.amount(outcome)} · ${bitsText(outcome.bits)}`;
      if (outcome.failed) what.className = "failed";
      row.append(who, what);
      return row;
    });
    if (active.length > 5 || !active.length) {
      const row = document.createElement("li");
      row.className = "none";
      row.textContent = active.length ? `and ${active.length - 5} more` : "none";
      rows.push(row);
    }
    byId("now").replaceChildren(...rows);
  }

  function paint() {
    const active = world.contactsAt(state.time_s), text = clockText(state.time_s);
    const hasDevices = painter.paintMap(state.time_s, state.scheme, active);
    const note = hasDevices ? mapNote : `The map is empty: the trace has no position of any device at this time. ${mapNote}`;
    if (byId("map-note").textContent !== note) byId("map-note").textContent = note;
    painter.paintTimeline(state.time_s, state.scheme);
    painter.paintScore(state.time_s, state.scheme);
    list(active);
    const round = Math.min(world.roundAt(state.time_s), Math.round(replay.duration_s / replay.round_s));
    byId("clock").textContent = text;
    byId("round").textContent = `round ${round.toLocaleString("en")}`;
    const score = painter.scoreAt(state.scheme, state.time_s);
    const shown = score === null ? "" : (score * Charts.scale).toFixed(Page.metric.percent ? 1 : 3);
    byId("mini-title").textContent = `${Page.metric.words} ${shown} ${Page.metric.unit}`;
    const scrub = byId("scrub");
    scrub.value = String(state.time_s);
    scrub.setAttribute("aria-valuetext", `${text}, round ${round}, ${active.length} in contact`);
    if (!state.playing) byId("map").setAttribute("aria-label", `Map at ${text}: ${replay.devices} devices, ${active.length} in contact with the server`);
  }

  function seek(time_s) {
    state.time_s = Math.min(Math.max(time_s, 0), replay.until_s);
    if (!state.playing) paint();
  }
  function frame(now) {
    if (!state.playing) return;
    // Limit the step after a suspended tab.
    const passed = state.last === null ? 0 : Math.min((now - state.last) / 1000, 0.1);
    state.last = now;
    state.time_s = Math.min(state.time_s + passed * state.speed, replay.until_s);
    if (state.time_s >= replay.until_s) play(false);
    paint();
    if (state.playing) requestAnimationFrame(frame);
  }
  function play(on) {
    if (on && state.time_s >= replay.until_s) state.time_s = 0;
    Object.assign(state, { playing: on, last: null });
    byId("play").textContent = on ? "Pause" : "Play";
    byId("play").setAttribute("aria-label", on ? "Pause" : "Play");
    if (on) requestAnimationFrame(frame); else paint();
  }
  function next() {
    const start_s = world.nextContact(state.time_s);
    // Shortly after its start, so that the link is visible.
    if (start_s !== null) seek(start_s + 0.5);
  }
  function fresh() { painter.layMap(); painter.forget(); painter.paintAges(); paint(); }

  byId("scrub").max = String(replay.until_s);
  byId("scrub").addEventListener("input", (event) => seek(Number(event.target.value)));
  byId("play").addEventListener("click", () => play(!state.playing));
  byId("next").addEventListener("click", next);
  byId("speed").addEventListener("change", (event) => { state.speed = Number(event.target.value); });
  byId("replay-scheme").addEventListener("change", (event) => { state.scheme = Number(event.target.value); painter.forget(); paint(); });
  byId("timeline").addEventListener("pointerdown", (event) => {
    const follow = (moved) => seek(painter.timelineTime(moved.offsetX));
    follow(event);
    byId("timeline").setPointerCapture(event.pointerId);
    byId("timeline").onpointermove = follow;
    byId("timeline").onpointerup = byId("timeline").onpointercancel = () => { byId("timeline").onpointermove = null; };
  });
  byId("replay").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const step = event.shiftKey ? 6 * STEP_S : STEP_S;
    const keys = {
      " ": () => play(!state.playing), ArrowRight: () => seek(state.time_s + step), ArrowLeft: () => seek(state.time_s - step),
      Home: () => seek(0), End: () => seek(replay.until_s), n: next, N: next,
    };
    // The space bar already presses a focused button.
    if (!(event.key in keys) || (event.key === " " && event.target.tagName === "BUTTON")) return;
    event.preventDefault();
    keys[event.key]();
  });

  byId("timeline-note").textContent = "One row per device. Stronger colour: more of the update delivered. Red: interrupted. Grey: nothing sent. Click to jump there.";
  byId("ages-high").textContent = `${Math.round(replay.stale_rounds)}+ rounds`;
  Theme.onChange(() => { painter.newTheme(); fresh(); });
  new ResizeObserver(fresh).observe(byId("replay"));
  fresh();

  /* For tests and the browser console. */
  window.wayfareReplay = {
    seek, play, world,
    state: () => ({ ...state }),
    positions: () => Array.from({ length: replay.devices + 1 }, (_, node) => world.position(node, state.time_s)),
    inContact: () => world.contactsAt(state.time_s).map((contact) => world.contacts.device[contact]),
  };
})();
