// One step by predicted time: calls of bodies above, launches below, gaps empty.

const TRACK = { ticks: 18, calls: 24, callHeight: 24, launches: 52, launchHeight: 46 };
// Part of the step that is shown, in ns.
const span = { start: 0, ns: 1 };
let launched = [];

function timeline(list) {
  const kernels = new Map(bodiesOf(list).flatMap((body) => body.kernels.map((k) => [k.name, k])));
  launched = data.launches[list].map(([index, site, start]) => {
    const kernel = kernels.get(data.manifest.kernels[index].name);
    return { kernel, site, start, end: start + kernel.predicted_ns };
  });
  byId("legend").replaceChildren(...classes.map((name) =>
    element("span", {}, element("span", { class: "swatch", style: `background:${classColour(name)}` }), name)));
  fitTimeline();
}

function stepLength() {
  const last = launched[launched.length - 1];
  return last ? last.end + last.kernel.gap_ns : 1;
}

// Launches in a row of one call.
function calls() {
  const found = [];
  for (const launch of launched) {
    const last = found[found.length - 1];
    if (last && last.site === launch.site) last.end = launch.end;
    else found.push({ site: launch.site, start: launch.start, end: launch.end });
  }
  return found;
}

function drawTimeline() {
  const svg = byId("timeline");
  const width = svg.getBoundingClientRect().width;
  const at = (ns) => (ns - span.start) * width / span.ns;
  const visible = (part) => part.end >= span.start && part.start <= span.start + span.ns;
  const block = (part, y, height, colour) => {
    // Parts far outside are cut off: coordinates of SVG are single precision.
    const [left, right] = [Math.max(at(part.start), -10), Math.min(at(part.end), width + 10)];
    return { left, wide: right - left, rect: drawn("rect", { x: left, y, width: Math.max(right - left, 0.3), height, fill: colour }) };
  };
  const ticks = tickMarks(width).map((ns) => drawn("g", {},
    drawn("line", { class: "tick", x1: at(ns), x2: at(ns), y1: 0, y2: 110 }),
    drawn("text", { x: at(ns) + 3, y: 12 }, `${(ns / 1000).toLocaleString("en")} us`)));
  const sites = calls().filter(visible).map((call) => {
    const { left, wide, rect } = block(call, TRACK.calls, TRACK.callHeight, null);
    return drawn("g", { class: "call" }, drawn("title", {}, `${call.site}: ${usText(call.end - call.start)} us`), rect,
      label(call.site, left, wide, TRACK.calls + 16));
  });
  const launches = launched.filter(visible).map((launch) => {
    const { left, wide, rect } = block(launch, TRACK.launches, TRACK.launchHeight, classColour(launch.kernel.class));
    const k = launch.kernel;
    const title = `${k.name}\n${launch.site}, ${k.class}\n${usText(k.predicted_ns)} us, then ${usText(k.gap_ns)} us gap`;
    const shape = drawn("g", { class: "launch", "data-kernel": k.name }, drawn("title", {}, title), rect,
      label(k.name, left, wide, TRACK.launches + 27));
    shape.addEventListener("click", () => { if (!dragging.moved) select(k.name, launch.site.split(".").pop()); });
    return shape;
  });
  svg.replaceChildren(...ticks, ...sites, ...launches);
  const shown = `${usText(span.start)} to ${usText(span.start + span.ns)} us of ${usText(stepLength())} us`;
  byId("timeline-range").textContent = `${shown}; ${plural(launched.length, "launch").replace("launchs", "launches")}`;
  mark();
}

// A name, if it fits.
function label(text, left, wide, y) {
  const x = Math.max(left, 0) + 4;
  return wide - (x - left) > text.length * 6.5 ? drawn("text", { x, y }, text) : null;
}

function tickMarks(width) {
  const rough = span.ns * 110 / Math.max(width, 1);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough) || power * 10;
  const marks = [];
  for (let ns = Math.ceil(span.start / step) * step; ns <= span.start + span.ns; ns += step) marks.push(ns);
  return marks;
}

function fitTimeline() {
  span.start = 0;
  span.ns = stepLength();
  drawTimeline();
}

function moveTimeline(start, ns) {
  const all = stepLength();
  span.ns = Math.min(Math.max(ns, 100), all);
  span.start = Math.min(Math.max(start, 0), all - span.ns);
  drawTimeline();
}

function zoomTimeline(factor, x) {
  const width = byId("timeline").getBoundingClientRect().width;
  const ns = Math.min(span.ns / factor, stepLength());
  moveTimeline(span.start + (span.ns - ns) * x / width, ns);
}

function timelineControls() {
  const svg = byId("timeline");
  const width = () => svg.getBoundingClientRect().width;
  gestures(svg, (dx) => moveTimeline(span.start - dx * span.ns / width(), span.ns), zoomTimeline);
  byId("timeline-in").addEventListener("click", () => zoomTimeline(2, width() / 2));
  byId("timeline-out").addEventListener("click", () => zoomTimeline(0.5, width() / 2));
  byId("timeline-fit").addEventListener("click", fitTimeline);
  window.addEventListener("resize", drawTimeline);
}
