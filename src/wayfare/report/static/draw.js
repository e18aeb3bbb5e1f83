"use strict";
/* Draws the replay: map, timeline of contacts, and score with a cursor, on canvases for hundreds of devices. */
function makePainter(world) {
  const { replay, contacts } = world;
  const byId = (id) => document.getElementById(id);
  // From fresh to old: blue to vermilion, which colour-blind readers can distinguish.
  const AGES = [[0, 114, 178], [86, 180, 233], [240, 228, 66], [230, 159, 0], [213, 94, 0]];
  const still = {};
  let colours = {};

  function sized(canvas, height) {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const brush = canvas.getContext("2d");
    brush.setTransform(ratio, 0, 0, ratio, 0, 0);
    brush.clearRect(0, 0, width, height);
    return { brush, width, height, ratio };
  }
  function font(size, weight = "") { return `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`; }

  function ageColour(age) {
    const place = Math.min(age / replay.stale_rounds, 1) * (AGES.length - 1), low = Math.min(Math.floor(place), AGES.length - 2);
    return `rgb(${AGES[low].map((part, channel) => Math.round(part + (place - low) * (AGES[low + 1][channel] - part))).join()})`;
  }

  /* ---- map ---- */
  let view = null;
  function layMap() {
    const canvas = byId("map"), most = Math.min(window.innerHeight * 0.75, 560);
    const pad = 14, width = canvas.clientWidth;
    const perMetre = Math.min((width - 2 * pad) / world.area.width_m, (most - 2 * pad) / world.area.height_m);
    const height = Math.round(world.area.height_m * perMetre + 2 * pad);
    const left = (width - world.area.width_m * perMetre) / 2;
    view = { perMetre, height, x: (x_m) => left + x_m * perMetre, y: (y_m) => height - pad - y_m * perMetre };
  }
  function niceLength(metres) {
    const power = 10 ** Math.floor(Math.log10(metres));
    return [5, 2, 1].map((factor) => factor * power).find((length) => length <= metres) ?? power;
  }
  function ground(brush) {
    const { area } = world, step = niceLength(Math.max(area.width_m, area.height_m) / 5);
    brush.strokeStyle = colours.grid;
    brush.lineWidth = 1;
    brush.beginPath();
    for (let x = 0; x <= area.width_m + 1e-6; x += step) { brush.moveTo(view.x(x), view.y(0)); brush.lineTo(view.x(x), view.y(area.height_m)); }
    for (let y = 0; y <= area.height_m + 1e-6; y += step) { brush.moveTo(view.x(0), view.y(y)); brush.lineTo(view.x(area.width_m), view.y(y)); }
    brush.stroke();
    const text = step >= 1000 ? `${step / 1000} km` : `${step} m`, y = view.y(0) - 10, x = view.x(0) + 10;
    brush.strokeStyle = brush.fillStyle = colours.soft;
    brush.lineWidth = 2;
    brush.beginPath(); brush.moveTo(x, y); brush.lineTo(x + step * view.perMetre, y); brush.stroke();
    brush.font = font(11); brush.textAlign = "left"; brush.textBaseline = "bottom";
    brush.fillText(text, x, y - 3);
  }
  function link(brush, from, to, outcome) {
    brush.strokeStyle = outcome.failed ? colours.bad : outcome.kept > 0 ? colours.accent : colours.soft;
    brush.lineWidth = outcome.failed ? 2 : 1.5 + 5 * outcome.kept;
    brush.setLineDash(outcome.failed ? [4, 4] : outcome.kept > 0 ? [] : [1, 4]);
    brush.beginPath(); brush.moveTo(...from); brush.lineTo(...to); brush.stroke();
    brush.setLineDash([]);
  }
  function amount(outcome) {
    if (outcome.failed) return "interrupted";
    return outcome.kept > 0 ? `${(100 * outcome.kept).toFixed(outcome.kept < 0.095 ? 1 : 0)} %` : "nothing sent";
  }
  function label(brush, text, x, y, ink) {
    brush.font = font(11.5, "600"); brush.textAlign = "center"; brush.textBaseline = "middle";
    brush.lineWidth = 4; brush.strokeStyle = colours.ground; brush.lineJoin = "round";
    brush.strokeText(text, x, y);
    brush.fillStyle = ink; brush.fillText(text, x, y);
  }

  /* A position further from the server, where a label hides no link. */
  function beyond(place, server) {
    const [x, y] = [place[0] - server[0], place[1] - server[1]], length = Math.hypot(x, y) || 1;
    return [place[0] + (22 * x) / length, place[1] + (y ? 18 * y : -18) / length];
  }

  function paintMap(time_s, scheme, active) {
    const { brush } = sized(byId("map"), view.height);
    if (world.motion) ground(brush);
    const at = (node, when) => { const place = world.position(node, when); return place && [view.x(place[0]), view.y(place[1])]; };
    const server = at(replay.devices, time_s), many = replay.devices > 60;
    if (server && world.motion) {
      brush.beginPath(); brush.arc(...server, replay.range_m * view.perMetre, 0, 2 * Math.PI);
      brush.fillStyle = colours.reach; brush.fill();
      brush.strokeStyle = colours.accent; brush.globalAlpha = 0.35; brush.lineWidth = 1; brush.stroke(); brush.globalAlpha = 1;
    }
    const busy = new Map(active.map((contact) => [contacts.device[contact], world.outcome(scheme, contact)]));
    const labels = [];
    const places = [];
    // A short tail shows the direction of a device; drawing all tails as one path is several times faster.
    brush.strokeStyle = colours.tail; brush.lineWidth = many ? 1 : 2;
    brush.beginPath();
    for (let device = 0; device < replay.devices; device++) {
      const place = at(device, time_s);
      places.push(place);
      if (!place || !world.motion) continue;
      let begun = false;
      for (const back of [6, 4, 2, 0]) {
        const then = time_s >= back ? at(device, time_s - back) : null;
        if (!then) continue;
        if (begun) brush.lineTo(...then); else brush.moveTo(...then);
        begun = true;
      }
    }
    brush.stroke();
    for (const [device, outcome] of busy) {
      if (!places[device] || !server) continue;
      link(brush, places[device], server, outcome);
      if (busy.size <= 14) labels.push([amount(outcome), beyond(places[device], server), outcome]);
    }
    const radius = many ? (replay.devices > 250 ? 3 : 4) : 6.5;
    const numbered = [];
    for (let device = 0; device < replay.devices; device++) {
      const place = places[device];
      if (!place) continue;
      brush.beginPath(); brush.arc(...place, busy.has(device) ? radius + 1.5 : radius, 0, 2 * Math.PI);
      brush.fillStyle = ageColour(world.age(scheme, device, time_s)); brush.fill();
      brush.strokeStyle = busy.has(device) ? colours.ink : colours.ground; brush.lineWidth = busy.has(device) ? 2 : 1; brush.stroke();
      // Two adjacent numbers would look like one.
      const free = numbered.every(([x, y]) => Math.abs(x - place[0]) > 20 || Math.abs(y - place[1]) > 11);
      if (replay.devices <= 40 && !busy.has(device) && free) {
        numbered.push(place);
        brush.font = font(10); brush.textAlign = "left"; brush.textBaseline = "middle"; brush.fillStyle = colours.soft;
        brush.fillText(replay.names ? replay.names[device] : String(device), place[0] + radius + 3, place[1] - radius);
      }
    }
    if (server) {
      brush.save(); brush.translate(...server); brush.rotate(Math.PI / 4);
      brush.fillStyle = colours.ink; brush.strokeStyle = colours.ground; brush.lineWidth = 2;
      brush.fillRect(-7, -7, 14, 14); brush.strokeRect(-7, -7, 14, 14); brush.restore();
      label(brush, "server", server[0], server[1] + 20, colours.ink);
    }
    for (const [text, place, outcome] of labels) label(brush, text, ...place, outcome.failed ? colours.bad : colours.ink);
    return places.some((place) => place);
  }

  /* ---- static images with a cursor on top ---- */
  function blit(name, canvas, height, paint, cursor) {
    const { brush, width, ratio } = sized(canvas, height);
    const key = `${canvas.width}x${canvas.height}`;
    if (still[name]?.key !== key) {
      const picture = document.createElement("canvas");
      picture.width = canvas.width; picture.height = canvas.height;
      const below = picture.getContext("2d");
      below.setTransform(ratio, 0, 0, ratio, 0, 0);
      still[name] = { key, picture, scales: paint(below, width, height) };
    }
    brush.save(); brush.setTransform(1, 0, 0, 1, 0, 0); brush.drawImage(still[name].picture, 0, 0); brush.restore();
    cursor(brush, still[name].scales);
  }
  function forget() { Object.keys(still).forEach((name) => delete still[name]); }
  function tickText(time_s, step) {
    if (step >= 3600) return `${time_s / 3600} h`;
    const minutes = Math.floor(time_s / 60);
    if (replay.until_s >= 7200) return `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, "0")} h`;
    return step >= 60 ? `${minutes} min` : `${time_s} s`;
  }
  function timeTicks(brush, x, height) {
    const steps = [10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800];
    const room = x(replay.until_s) - x(0), step = steps.find((one) => (room * one) / replay.until_s > 70) ?? steps.at(-1);
    brush.font = font(11); brush.textAlign = "center"; brush.textBaseline = "top"; brush.fillStyle = colours.soft;
    for (let time_s = 0; time_s <= replay.until_s; time_s += step) {
      brush.fillText(tickText(time_s, step), Math.min(Math.max(x(time_s), 18), x(replay.until_s) - 16), height - 15);
    }
  }
  function cursorLine(brush, x, top, bottom) {
    brush.strokeStyle = colours.ink; brush.lineWidth = 1.5;
    brush.beginPath(); brush.moveTo(x, top); brush.lineTo(x, bottom); brush.stroke();
  }

  function timelineHeight() { return Math.round(Math.min(Math.max(replay.devices * 9, 90), 270)) + 20; }
  function timelineTime(x) { return still.timeline ? still.timeline.scales.time(x) : 0; }
  function paintTimeline(time_s, scheme) {
    blit("timeline", byId("timeline"), timelineHeight(), (brush, width, height) => {
      const left = 4, right = width - 4, rows = height - 20, row = rows / replay.devices;
      const x = (when) => left + (when / replay.until_s) * (right - left);
      brush.fillStyle = colours.ground; brush.fillRect(left, 0, right - left, rows);
      for (let contact = 0; contact < contacts.start_s.length; contact++) {
        const outcome = world.outcome(scheme, contact), begin = x(contacts.start_s[contact]);
        brush.fillStyle = outcome.failed ? colours.bad : outcome.kept > 0 ? colours.accent : colours.soft;
        brush.globalAlpha = outcome.failed || outcome.kept === 0 ? 0.8 : 0.3 + 0.7 * outcome.kept;
        const length = Math.max(x(contacts.end_s[contact]) - begin, 1.5);
        brush.fillRect(begin, contacts.device[contact] * row, length, Math.max(row - (row > 3 ? 1 : 0), 0.6));
      }
      brush.globalAlpha = 1;
      timeTicks(brush, x, height);
      return { x, rows, time: (place) => Math.min(Math.max((place - left) / (right - left), 0), 1) * replay.until_s };
    }, (brush, scales) => cursorLine(brush, scales.x(time_s), 0, scales.rows));
  }

  function paintScore(time_s, scheme) {
    blit("score", byId("mini"), 190, (brush, width, height) => {
      const all = replay.schemes.flatMap((one) => one.score.filter((score) => score !== null)).map((score) => score * Charts.scale);
      const low = Math.min(...all), high = Math.max(...all), span = high - low || 1, left = 34, top = 8, bottom = height - 18;
      const x = (when) => left + (when / replay.until_s) * (width - left - 8), y = (score) => bottom - ((score - low) / span) * (bottom - top);
      brush.font = font(11); brush.fillStyle = colours.soft; brush.textAlign = "right"; brush.textBaseline = "middle";
      for (const score of [low, high]) brush.fillText(score.toFixed(span < 5 ? 2 : 0), left - 5, y(score));
      brush.strokeStyle = colours.line; brush.strokeRect(left, top, width - left - 8, bottom - top);
      timeTicks(brush, x, height);
      brush.save(); brush.beginPath(); brush.rect(left, 0, width - left - 8, height); brush.clip();
      const order = [...replay.schemes.keys()].filter((place) => place !== scheme).concat(scheme);
      for (const place of order) {
        const one = replay.schemes[place];
        brush.strokeStyle = Charts.colour(one.name); brush.lineWidth = place === scheme ? 2.6 : 1.2; brush.globalAlpha = place === scheme ? 1 : 0.45;
        brush.beginPath();
        one.time_s.forEach((when, point) => { if (one.score[point] !== null) brush.lineTo(x(when), y(one.score[point] * Charts.scale)); });
        brush.stroke();
      }
      brush.restore();
      return { x, y, top, bottom };
    }, (brush, scales) => {
      cursorLine(brush, scales.x(time_s), scales.top, scales.bottom);
      const one = replay.schemes[scheme], place = world.lastUpTo(one.time_s, time_s);
      if (place < 0 || one.score[place] === null) return;
      // Interpolate between the previous and the next evaluation.
      const after = Math.min(place + 1, one.time_s.length - 1), span = one.time_s[after] - one.time_s[place];
      const share = span && one.score[after] !== null ? (time_s - one.time_s[place]) / span : 0;
      const score = one.score[place] + share * ((one.score[after] ?? 0) - one.score[place]);
      brush.beginPath(); brush.arc(scales.x(time_s), scales.y(score * Charts.scale), 4, 0, 2 * Math.PI);
      brush.fillStyle = Charts.colour(one.name); brush.fill(); brush.strokeStyle = colours.surface; brush.lineWidth = 1.5; brush.stroke();
    });
  }
  /* The score of the last evaluation up to a time. */
  function scoreAt(scheme, time_s) {
    const one = replay.schemes[scheme], place = world.lastUpTo(one.time_s, time_s);
    return place < 0 ? null : one.score[place];
  }

  function paintAges() {
    const { brush, width, height } = sized(byId("ages"), 10), fade = brush.createLinearGradient(0, 0, width, 0);
    AGES.forEach((_, place) => fade.addColorStop(place / (AGES.length - 1), ageColour((place / (AGES.length - 1)) * replay.stale_rounds)));
    brush.fillStyle = fade; brush.fillRect(0, 0, width, height);
  }
  function newTheme() {
    colours = Object.fromEntries(["ground", "surface", "ink", "soft", "line", "grid", "accent", "bad"].map((name) => [name, Theme.colour(name)]));
    colours.reach = Charts.faint(colours.accent, 0.1);
    colours.tail = Charts.faint(colours.soft, 0.45);
    forget();
  }

  newTheme();
  return { layMap, paintMap, paintTimeline, paintScore, paintAges, newTheme, forget, timelineTime, scoreAt, amount };
}
