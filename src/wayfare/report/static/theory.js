"use strict";
/* Theory and experiment: lines are predictions, points are measurements. */
(() => {
  const theory = Page.theory;
  if (!theory) return;
  document.getElementById("theory").hidden = false;
  const rounds = theory.measured.some((one) => one.rounds !== null);
  const target = Page.metric.percent ? `${100 * theory.target} %` : theory.target;
  const measuredTitle = rounds ? `rounds to ${target}` : Charts.scoreTitle;
  document.getElementById("theory-note").textContent =
    `Lines: Corollary 1 relative to its minimum, with ${theory.contact_m} m covered in a contact and ${theory.gap_m} m between contacts. Solid: corrected; dashed: sharp; dotted: printed. ` +
    `Points: ${measuredTitle}${rounds ? ", median over seeds" : ", mean and 95 % interval"}. The bound shows where learning is hard, not how long it takes.`;

  function schemes() { return [...new Set(theory.measured.map((one) => one.scheme))].filter((scheme) => !Charts.isHidden(scheme)); }
  function points(value, half, more = {}) {
    return schemes().map((scheme) => {
      const mine = theory.measured.filter((one) => one.scheme === scheme && value(one) !== null);
      return Charts.line(scheme, mine.map((one) => one.speed_mps), mine.map(value), {
        mode: "markers", marker: { size: 8, color: Charts.colour(scheme) }, hovertemplate: "%{y:.4g}",
        error_y: { type: "data", array: mine.map((one) => half(one) ?? 0), thickness: 1.3, width: 4 }, ...more,
      });
    });
  }
  function prediction(name, y, dash) {
    return { type: "scatter", mode: "lines", name, x: theory.speed_mps, y, line: { color: Theme.colour("soft"), width: 2, dash }, hovertemplate: "%{y:.4g}" };
  }
  function speedAxis() {
    const places = [...new Set(theory.measured.map((one) => one.speed_mps))];
    return Charts.axis("speed, m/s", { type: "log", tickvals: places, ticktext: places.map(String) });
  }

  Charts.onDraw(() => {
    const named = { printed: ["as printed", "dot"], corrected: ["corrected", "solid"], sharp: ["sharp", "dash"] };
    const bounds = Object.entries(theory.bound).map(([variant, y]) => prediction(...[named[variant][0], y, named[variant][1]]));
    const value = rounds ? (one) => one.rounds : (one) => one.score.mean * Charts.scale;
    const half = rounds ? () => 0 : (one) => (one.score.ci95 === null ? null : one.score.ci95 * Charts.scale);
    // Use two panels, because two scales in one panel would suggest a relation.
    const above = Charts.axis("bound / minimum", { type: "log", dtick: 1, domain: [0.54, 1] });
    const below = Charts.axis(measuredTitle, { rangemode: "tozero", domain: [0, 0.44] });
    Charts.draw("theory-bound", [...bounds, ...points(value, half, { yaxis: "y2" })], { ...speedAxis(), anchor: "y2" }, above, { yaxis2: below });
    Charts.draw("theory-age", [prediction("theory", theory.age, "solid"), ...points((one) => one.staleness_rounds.mean, (one) => one.staleness_rounds.ci95)], speedAxis(), Charts.axis("staleness, rounds", { rangemode: "tozero" }));
    Charts.draw("theory-kept", [prediction("theory", theory.kept, "solid"), ...points((one) => 100 * one.kept_fraction.mean, (one) => (one.kept_fraction.ci95 === null ? null : 100 * one.kept_fraction.ci95))], speedAxis(), Charts.axis("kept, %", { rangemode: "tozero" }));
  });
})();
