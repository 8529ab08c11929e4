// One step by predicted time: calls of bodies above, launches below, gaps empty.

const TRACK = { calls: 24, callHeight: 24, launches: 52, launchHeight: 46, lane: 22, laneGap: 3, below: 12 };
// Part of the step that is shown, in ns.
const span = { start: 0, ns: 1 };
let launched = [];
// Classes with a track of their own, from the top; empty if all launches share one.
let lanes = [];

// Top and height of a launch.
function laneOf(launch) {
  if (lanes.length === 0) return [TRACK.launches, TRACK.launchHeight];
  return [TRACK.launches + lanes.indexOf(launch.kernel.class) * (TRACK.lane + TRACK.laneGap), TRACK.lane];
}

function arrangeLanes() {
  const present = new Set(launched.map((launch) => launch.kernel.class));
  lanes = byId("timeline-lanes").checked ? classes.filter((name) => present.has(name)) : [];
  const tracks = lanes.length === 0 ? TRACK.launchHeight : lanes.length * (TRACK.lane + TRACK.laneGap);
  byId("timeline").style.height = `${TRACK.launches + tracks + TRACK.below}px`;
}

// The name of each track's class, its launches and their time.
function laneNames() {
  return lanes.map((name, i) => {
    const own = launched.filter((launch) => launch.kernel.class === name);
    const ns = own.reduce((total, launch) => total + launch.kernel.predicted_ns + launch.kernel.gap_ns, 0);
    const y = TRACK.launches + i * (TRACK.lane + TRACK.laneGap) + 15;
    return drawn("text", { class: "lane", x: 4, y }, `${name}: ${own.length}, ${usText(ns)} us`);
  });
}

function timeline(list) {
  const kernels = new Map(bodiesOf(list).flatMap((body) => body.kernels.map((k) => [k.name, k])));
  launched = data.launches[list].map(([index, site, start]) => {
    const kernel = kernels.get(data.manifest.kernels[index].name);
    return { kernel, site, start, end: start + kernel.predicted_ns };
  });
  byId("legend").replaceChildren(...classes.map((name) =>
    element("span", {}, element("span", { class: "swatch", style: `background:${classColour(name)}` }), name)));
  arrangeLanes();
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
    drawn("line", { class: "tick", x1: at(ns), x2: at(ns), y1: 0, y2: svg.getBoundingClientRect().height }),
    drawn("text", { x: at(ns) + 3, y: 12 }, `${(ns / 1000).toLocaleString("en")} us`)));
  const sites = calls().filter(visible).map((call) => {
    const { left, wide, rect } = block(call, TRACK.calls, TRACK.callHeight, null);
    return drawn("g", { class: "call" }, drawn("title", {}, `${call.site}: ${usText(call.end - call.start)} us`), rect,
      label(call.site, left, wide, TRACK.calls + 16));
  });
  const launches = launched.filter(visible).map((launch) => {
    const [top, height] = laneOf(launch);
    const { left, wide, rect } = block(launch, top, height, classColour(launch.kernel.class));
    const k = launch.kernel;
    const title = `${k.name}\n${launch.site}, ${k.class}\n${usText(k.predicted_ns)} us, then ${usText(k.gap_ns)} us gap`;
    const shape = drawn("g", { class: "launch", "data-kernel": k.name }, drawn("title", {}, title), rect,
      lanes.length === 0 ? label(k.name, left, wide, top + 27) : null);
    shape.addEventListener("click", () => { if (!dragging.moved) select(k.name, launch.site.split(".").pop()); });
    return shape;
  });
  svg.replaceChildren(...ticks, ...sites, ...launches, ...laneNames());
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
  byId("timeline-lanes").addEventListener("change", () => { arrangeLanes(); drawTimeline(); });
  window.addEventListener("resize", drawTimeline);
}
