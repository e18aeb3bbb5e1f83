"use strict";
/* The charts of the page. A scheme has the same colour and dash in all charts, and its chip hides it in all charts. */
const Page = JSON.parse(document.getElementById("data").textContent);

const Charts = (() => {
  const byId = (id) => document.getElementById(id);
  const hidden = new Set(), others = [];
  const choice = { point: 0, x: "round", y: "score", metric: "score", panel: "" };
  const scale = Page.metric.percent ? 100 : 1;
  const scoreTitle = [Page.metric.words, Page.metric.unit].filter(Boolean).join(", ");
  const units = {
    score: { title: scoreTitle, factor: scale },
    energy_joules: { title: "energy, J", factor: 1 },
    budget_joules: { title: "budget, J", factor: 1 },
    bits: { title: "transmitted, Mbit", factor: 1e-6 },
    loss: { title: "test loss", factor: 1 },
    kept_fraction: { title: "kept share of an update, %", factor: 100 },
    staleness_rounds: { title: "staleness, rounds", factor: 1 },
    round: { title: "round", factor: 1 },
    wall_s: { title: "wall time, s", factor: 1 },
  };

  /* Plotly interprets some HTML in its texts, so escape names. */
  function plain(text) { return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;"); }
  function unit(name) { return units[name] ?? { title: name.replaceAll("_", " "), factor: 1 }; }
  function timeUnit(span) {
    if (span > 3 * 86400) return { title: "simulated time, days", factor: 1 / 86400 };
    return span > 7200 ? { title: "simulated time, h", factor: 1 / 3600 } : { title: "simulated time, min", factor: 1 / 60 };
  }
  function colour(scheme) { return Page.looks[scheme][Theme.isDark() ? "dark" : "light"]; }
  function faint(hex, share) {
    const [r, g, b] = [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16));
    return `rgba(${r},${g},${b},${share})`;
  }
  function scaled(values, factor) { return values.map((value) => (value === null ? null : value * factor)); }
  function groups() { return Object.entries(Page.points[choice.point].groups).filter(([scheme]) => !hidden.has(scheme)); }

  function axis(title, more = {}) {
    return {
      title: { text: plain(title), standoff: 8 }, gridcolor: Theme.colour("grid"), linecolor: Theme.colour("line"), zeroline: false,
      automargin: true, ticks: "outside", tickcolor: Theme.colour("line"), ticklen: 4, ...more,
    };
  }
  function draw(id, traces, xaxis, yaxis, more = {}) {
    const ink = Theme.colour("ink");
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, margin: { l: 52, r: 12, t: 8, b: 44 },
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: Theme.colour("soft") },
      hoverlabel: { bgcolor: Theme.colour("surface"), bordercolor: Theme.colour("line"), font: { color: ink } },
      hovermode: "x unified", dragmode: false, xaxis, yaxis, ...more,
    };
    /* Draw dashed lines last, so that solid lines do not hide them. */
    const broken = (trace) => Number((trace.line?.dash ?? "solid") !== "solid");
    const ordered = [...traces].sort((one, other) => broken(one) - broken(other));
    Plotly.react(id, ordered, layout, { displayModeBar: false, responsive: true, doubleClick: "reset" });
  }
  function line(scheme, x, y, more = {}) {
    const look = { color: colour(scheme), width: 2.2, dash: Page.looks[scheme].dash };
    return { type: "scatter", mode: "lines", name: plain(Page.looks[scheme].label), x, y, line: look, ...more };
  }

  /* Dashed lines have hollow markers, because colours repeat. */
  function mark(scheme) { return { size: 7, symbol: Page.looks[scheme].dash === "solid" ? "circle" : "circle-open" }; }

  function drawCurves() {
    const traces = [];
    const of = unit(choice.y);
    const span = Math.max(...groups().map(([, group]) => group.curves.time_s.mean.at(-1)), 0);
    const across = choice.x === "time_s" ? timeUnit(span) : unit(choice.x);
    let seeds = 1;
    for (const [scheme, group] of groups()) {
      const curve = group.curves[choice.y];
      if (!curve) continue;
      seeds = Math.max(seeds, group.seeds.length);
      const x = scaled(group.curves[choice.x].mean, across.factor);
      if (group.seeds.length > 1) {
        const edge = { width: 0 };
        traces.push(line(scheme, x, scaled(curve.high, of.factor), { line: edge, hoverinfo: "skip" }));
        traces.push(line(scheme, x, scaled(curve.low, of.factor), { line: edge, hoverinfo: "skip", fill: "tonexty", fillcolor: faint(colour(scheme), 0.13) }));
      }
    }
    for (const [scheme, group] of groups()) {
      const curve = group.curves[choice.y];
      if (!curve) continue;
      traces.push(line(scheme, scaled(group.curves[choice.x].mean, across.factor), scaled(curve.mean, of.factor), { hovertemplate: "%{y:.4g}" }));
    }
    const costs = choice.x === "energy_joules" || choice.x === "bits";
    byId("curve-note").textContent = seeds > 1
      ? `Lines are means over ${seeds} seeds; bands range from the lowest to the highest seed${costs ? "; costs are means over seeds" : ""}.`
      : "One seed: one world.";
    draw("curves", traces, axis(across.title, { rangemode: "tozero" }), axis(of.title), costs ? { hovermode: "closest" } : {});
  }

  function drawShares() {
    const dots = groups().reverse().map(([scheme, group]) => ({
      type: "box", orientation: "h", name: plain(Page.looks[scheme].label), x: scaled(group.budget_shares, 100), boxpoints: "all", jitter: 0.7, pointpos: 0, width: 0.62,
      marker: { color: faint(colour(scheme), 0.55), size: 4.5 }, line: { color: colour(scheme), width: 1.2 }, fillcolor: faint(colour(scheme), 0.1),
      hoveron: "points", hovertemplate: "%{x:.0f} % of its budget<extra></extra>",
    }));
    const budget = { type: "line", x0: 100, x1: 100, y0: 0, y1: 1, yref: "paper", line: { color: Theme.colour("ink"), width: 1.4 } };
    draw("shares", dots, axis("energy spent, % of budget", { rangemode: "tozero" }), axis("", { showgrid: false, ticks: "" }), { hovermode: "closest", shapes: [budget] });
  }

  function drawBacklog() {
    const lasting = timeUnit(Math.max(...groups().map(([, group]) => group.backlog.time_s.at(-1)), 0));
    const traces = groups().map(([scheme, group]) =>
      line(scheme, scaled(group.backlog.time_s, lasting.factor), group.backlog.mean, { connectgaps: true, hovertemplate: "%{y:.3g} J" }));
    draw("backlog", traces, axis(lasting.title, { rangemode: "tozero" }), axis("backlog, J", { rangemode: "tozero" }));
  }

  function drawTails() {
    const shares = axis("contacts, %", { range: [0, 102] });
    const kept = groups().map(([scheme, group]) => line(scheme, group.kept.at_least, group.kept.percent, { line: { color: colour(scheme), width: 2, dash: Page.looks[scheme].dash, shape: "vh" }, hovertemplate: "%{y:.0f} % keep at least %{x:.0f} %" }));
    draw("kept", kept, axis("delivered at least, % of an update", { range: [0, 101] }), shares, { hovermode: "closest" });
    const ages = groups().map(([scheme, group]) => line(scheme, group.staleness.at_least, group.staleness.percent, { line: { color: colour(scheme), width: 2, dash: Page.looks[scheme].dash, shape: "vh" }, hovertemplate: "%{y:.0f} % at least %{x:.0f} rounds" }));
    draw("staleness", ages, axis("staleness at the contact, rounds", { type: "log", dtick: 1 }), shares, { hovermode: "closest" });
  }

  function drawHoldings() {
    const held = Page.holdings;
    byId("holdings-section").hidden = !held || held.counts[0].length < 2;
    if (byId("holdings-section").hidden) return;
    const classes = held.counts[0].map((_, label) => held.counts.map((row) => row[label]));
    byId("holdings-note").textContent = `Training samples of each class of ${held.task} on each device; seed ${held.seed}.`;
    // Plotly interprets tags in its texts.
    const names = held.names?.map((name) => name.replaceAll("<", "&lt;"));
    const heat = {
      type: "heatmap", z: classes, x: names, xgap: held.counts.length > 120 ? 0 : 1, ygap: 1, colorscale: [[0, Theme.colour("surface")], [1, Theme.colour("accent")]],
      hovertemplate: (names ? "" : "device ") + "%{x}, class %{y}: %{z} samples<extra></extra>", colorbar: { thickness: 10, outlinewidth: 0, title: { text: "samples", side: "right" } },
    };
    draw("holdings", [heat], axis("device", { showgrid: false, ...(names && { type: "category" }) }), axis("class", { showgrid: false, dtick: classes.length > 12 ? null : 1 }), { hovermode: "closest" });
  }

  function drawStudy() {
    if (!Page.study) return;
    const of = unit(choice.metric);
    const rows = Page.study.rows.filter((row) => row.panel === choice.panel && choice.metric in row.estimates);
    const places = [...new Set(rows.map((row) => row.x))];
    const numeric = places.every((x) => typeof x === "number");
    const wide = numeric && Math.min(...places) > 0 && Math.max(...places) / Math.min(...places) >= 8;
    const schemes = [...new Set(rows.map((row) => row.scheme))].filter((scheme) => !hidden.has(scheme));
    /* Long names need a layout from top to bottom. */
    const named = !numeric && Math.max(...places.map((x) => String(x).length)) > 12;
    byId("study-plot").style.height = named ? `${80 + 12 * places.length * (schemes.length + 1)}px` : "";
    if (named) {
      drawNamed(rows, places, schemes, of);
      return;
    }
    const traces = schemes.map((scheme) => {
      const mine = rows.filter((row) => row.scheme === scheme);
      if (numeric) mine.sort((one, other) => one.x - other.x);
      const found = mine.map((row) => row.estimates[choice.metric]);
      return line(scheme, mine.map((row) => (numeric ? row.x : plain(row.x))), scaled(found.map((one) => one.mean), of.factor), {
        mode: numeric ? "lines+markers" : "markers", marker: mark(scheme), hovertemplate: "%{y:.4g}",
        error_y: { type: "data", array: scaled(found.map((one) => one.ci95 ?? 0), of.factor), thickness: 1.3, width: 4, visible: true },
      });
    });
    const ticks = numeric ? { tickvals: places, ticktext: places.map(String) } : {};
    draw("study-plot", traces, axis(Page.study.axis, { type: wide ? "log" : numeric ? "linear" : "category", ...ticks }), axis(of.title));
  }

  /* One band per point from top to bottom, with the schemes below each other. */
  function drawNamed(rows, places, schemes, of) {
    const traces = schemes.map((scheme, number) => {
      const mine = rows.filter((row) => row.scheme === scheme);
      const found = mine.map((row) => row.estimates[choice.metric]);
      const lane = (number + 1) / (schemes.length + 1);
      return line(scheme, scaled(found.map((one) => one.mean), of.factor), mine.map((row) => places.indexOf(row.x) + lane), {
        mode: "markers", marker: mark(scheme), hovertemplate: "%{x:.4g}",
        error_x: { type: "data", array: scaled(found.map((one) => one.ci95 ?? 0), of.factor), thickness: 1.3, width: 0, visible: true },
      });
    });
    const bands = axis("", { tickvals: places.map((_, place) => place + 0.5), ticktext: places.map(plain), range: [places.length, 0], showgrid: false, ticks: "" });
    const edges = places.slice(1).map((_, place) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: place + 1, y1: place + 1, line: { color: Theme.colour("grid"), width: 1 } }));
    draw("study-plot", traces, axis(of.title), bands, { hovermode: "closest", shapes: edges });
  }

  function chips() {
    for (const box of document.querySelectorAll(".legend")) {
      box.replaceChildren(...Object.keys(Page.looks).map((scheme) => {
        const chip = document.createElement("button");
        chip.type = "button";
        chip.setAttribute("aria-pressed", String(!hidden.has(scheme)));
        const gaps = { solid: "", dash: "7 3", dot: "2 3", dashdot: "7 3 2 3" }[Page.looks[scheme].dash];
        chip.innerHTML = `<svg width="26" height="8" aria-hidden="true"><line x1="0" x2="26" y1="4" y2="4" stroke="${colour(scheme)}" stroke-width="3" stroke-dasharray="${gaps}"/></svg>`;
        chip.append(Page.looks[scheme].label);
        chip.addEventListener("click", () => {
          if (!hidden.delete(scheme)) hidden.add(scheme);
          drawAll();
        });
        return chip;
      }));
    }
  }

  function options(select, names, title) {
    select.replaceChildren(...names.map((name) => new Option(title(name), name)));
  }
  function controls() {
    const found = new Set(Page.points.flatMap((point) => Object.values(point.groups).flatMap((group) => Object.keys(group.curves))));
    ["round", "time_s"].forEach((name) => found.delete(name));
    options(byId("curve-y"), [...found], (name) => unit(name).title);
    byId("curve-y").addEventListener("change", (event) => { choice.y = event.target.value; drawCurves(); });
    for (const [value, text] of [["round", "rounds"], ["time_s", "time"], ["energy_joules", "energy"], ["bits", "bits sent"]]) {
      const label = document.createElement("label"), input = document.createElement("input"), span = document.createElement("span");
      Object.assign(input, { type: "radio", name: "curve-x", value, checked: value === choice.x });
      input.addEventListener("change", () => { choice.x = value; drawCurves(); });
      span.textContent = text;
      label.append(input, span);
      byId("curve-x").append(label);
    }
    byId("point").addEventListener("change", (event) => { choice.point = Number(event.target.value); drawAll(); });
    if (!Page.study) return;
    const panels = [...new Set(Page.study.rows.map((row) => row.panel))];
    choice.panel = panels[0];
    choice.metric = Page.study.metrics[0];
    byId("study-panel-label").hidden = panels.length < 2;
    options(byId("study-metric"), Page.study.metrics, (name) => unit(name).title);
    options(byId("study-panel"), panels, (name) => name);
    byId("study-metric").addEventListener("change", (event) => { choice.metric = event.target.value; drawStudy(); });
    byId("study-panel").addEventListener("change", (event) => { choice.panel = event.target.value; drawStudy(); });
  }
  function drawAll() {
    chips();
    [drawStudy, drawCurves, drawShares, drawBacklog, drawTails, drawHoldings, ...others].forEach((one) => one());
  }

  controls();
  drawAll();
  Theme.onChange(drawAll);
  return { colour, faint, scale, axis, draw, line, isHidden: (scheme) => hidden.has(scheme), scoreTitle, onDraw: (one) => { others.push(one); one(); } };
})();
