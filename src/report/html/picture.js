// The picture of a layer kind: kernels as boxes with their ops inside, and the values between them.

const CHIP = { width: 128, height: 18, gap: 4, columns: 4 };
const BOX = { padding: 10, head: 52, width: CHIP.columns * (CHIP.width + CHIP.gap) + 20 };
const GAP = { x: 50, y: 70, lane: 26 };
const ZOOM = { step: 1.25, least: 0.05, most: 8 };
const view = { x: 0, y: 0, scale: 1 };
let extent = { width: 1, height: 1 };

function picture(body) {
  const boxes = body.kernels.map((kernel) => {
    const ops = opsOf(body, kernel);
    const lines = Math.ceil(ops.length / CHIP.columns);
    return { kernel, ops, height: BOX.head + lines * (CHIP.height + CHIP.gap) + BOX.padding };
  });
  const edges = joinedEdges(body.edges);
  place(boxes, edges);
  const lanes = { next: Math.max(...boxes.map((b) => b.x + BOX.width)) + GAP.lane };
  const lines = edges.map((edge) => edgeShape(edge, boxes, lanes));
  extent = { width: lanes.next + GAP.lane, height: Math.max(...boxes.map((b) => b.y + b.height)) };
  byId("viewport").replaceChildren(...lines.map((l) => l.line), ...boxes.map((box) => boxShape(box, body.body)));
  fitPicture();
}

// One edge for all values between two kernels. Bytes: null if only states go there.
function joinedEdges(edges) {
  const joined = new Map();
  for (const e of edges) {
    const key = `${e.from} ${e.to}`;
    const edge = joined.get(key) || { from: e.from, to: e.to, bytes: null, values: [] };
    if (e.bytes !== null) edge.bytes = (edge.bytes || 0) + e.bytes;
    edge.values.push(`%${e.value}: ${e.ty}${e.bytes === null ? "" : `, ${bytesText(e.bytes)}`}`);
    joined.set(key, edge);
  }
  return [...joined.values()];
}

// Ranks by longest path; within a rank by the mean place of what a box reads. Kernels are in launch order, so that every
// edge goes forward.
function place(boxes, edges) {
  boxes.forEach((box) => { box.rank = 0; box.x = 0; box.y = 0; });
  for (const [to, box] of boxes.entries()) {
    for (const e of edges.filter((edge) => edge.to === to)) box.rank = Math.max(box.rank, boxes[e.from].rank + 1);
  }
  const ranks = [];
  boxes.forEach((box, i) => { (ranks[box.rank] ||= []).push(i); });
  let y = 0;
  for (const rank of ranks) {
    const mean = (i) => {
      const from = edges.filter((edge) => edge.to === i).map((edge) => boxes[edge.from].x);
      return from.length === 0 ? 0 : from.reduce((a, b) => a + b, 0) / from.length;
    };
    const order = rank.map((i) => [mean(i), i]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    const width = order.length * BOX.width + (order.length - 1) * GAP.x;
    order.forEach(([, i], column) => {
      boxes[i].x = column * (BOX.width + GAP.x) - width / 2;
      boxes[i].y = y;
    });
    y += Math.max(...rank.map((i) => boxes[i].height)) + GAP.y;
  }
  const left = Math.min(...boxes.map((box) => box.x));
  boxes.forEach((box) => { box.x -= left; });
}

// Between neighbouring ranks a curve; past other ranks a lane of its own on the right.
function edgeShape(edge, boxes, lanes) {
  const [a, b] = [boxes[edge.from], boxes[edge.to]];
  const label = edge.bytes === null ? "state" : bytesText(edge.bytes);
  let [path, x, y] = ["", 0, 0];
  if (b.rank - a.rank <= 1) {
    const [x1, y1, x2, y2] = [a.x + BOX.width / 2, a.y + a.height, b.x + BOX.width / 2, b.y];
    const bend = Math.max((y2 - y1) / 2, 20);
    path = `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
    [x, y] = [(x1 + x2) / 2, (y1 + y2) / 2 + 4];
  } else {
    const lane = lanes.next;
    lanes.next += GAP.lane + 20;
    const [y1, y2] = [a.y + a.height - 14, b.y + 16];
    path = `M${a.x + BOX.width} ${y1}H${lane - 8}Q${lane} ${y1} ${lane} ${y1 + 8}V${y2 - 8}Q${lane} ${y2} ${lane - 8} ${y2}H${b.x + BOX.width}`;
    [x, y] = [lane, (y1 + y2) / 2];
  }
  const line = drawn("g", { class: edge.bytes === null ? "edge state" : "edge", "data-from": edge.from, "data-to": edge.to },
    drawn("title", {}, edge.values.join("\n")),
    drawn("path", { d: path, "marker-end": "url(#arrow)" }),
    drawn("text", { x, y }, label));
  return { line };
}

function boxShape(box, body) {
  const k = box.kernel;
  const facts = [
    `${k.class}, bound by ${k.bound}, ${usText(k.predicted_ns)} us`,
    `DRAM ${bytesText(dramBytes(k))}, cache ${bytesText(cacheBytes(k))}, ${plural(box.ops.length, "op")}`,
  ];
  const shape = drawn("g", { class: "kernel", "data-kernel": k.name, transform: `translate(${box.x} ${box.y})` },
    drawn("title", {}, `${k.name}\n${k.schedule}`),
    drawn("rect", { class: "box", width: BOX.width, height: box.height, rx: 6 }),
    drawn("rect", { width: 6, height: box.height, rx: 3, fill: classColour(k.class) }),
    drawn("text", { class: "name", x: 14, y: 18 }, k.name),
    drawn("text", { class: "facts", x: 14, y: 32 }, facts[0]),
    drawn("text", { class: "facts", x: 14, y: 45 }, facts[1]),
    ...box.ops.map(chipShape));
  shape.addEventListener("click", () => { if (!dragging.moved) select(k.name, body); });
  return shape;
}

function chipShape(op, i) {
  const x = BOX.padding + 2 + (i % CHIP.columns) * (CHIP.width + CHIP.gap);
  const y = BOX.head + Math.floor(i / CHIP.columns) * (CHIP.height + CHIP.gap);
  const title = [`${op.text}: ${op.ty}`, ...linesByFile(op.lines), ...(op.alone ? [`alone: ${op.alone}`] : [])].join("\n");
  return drawn("g", { class: "op", "data-op": op.text, transform: `translate(${x} ${y})` },
    drawn("title", {}, title),
    drawn("rect", { width: CHIP.width, height: CHIP.height, rx: 3 }),
    drawn("text", { x: 5, y: 13 }, op.text));
}

function showView() {
  byId("viewport").setAttribute("transform", `translate(${view.x} ${view.y}) scale(${view.scale})`);
}

// Zooms by a factor; the point at (x, y) of the picture stays where it is.
function zoomPicture(factor, x, y) {
  const scale = Math.min(Math.max(view.scale * factor, ZOOM.least), ZOOM.most);
  view.x = x - (x - view.x) * scale / view.scale;
  view.y = y - (y - view.y) * scale / view.scale;
  view.scale = scale;
  showView();
}

// All of its width, and as much from the top as is legible.
function fitPicture() {
  const frame = byId("picture").getBoundingClientRect();
  const margin = 16;
  const whole = Math.min((frame.width - 2 * margin) / extent.width, (frame.height - 2 * margin) / extent.height);
  view.scale = Math.min(Math.max(whole, ZOOM.least), 1.2);
  view.x = (frame.width - extent.width * view.scale) / 2;
  view.y = margin;
  showView();
}

const dragging = { from: null, moved: false };

// Calls `move(dx, dy)` while `svg` is dragged, `wheel(factor, x, y)` for the wheel.
function gestures(svg, move, wheel) {
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const frame = svg.getBoundingClientRect();
    wheel(event.deltaY < 0 ? ZOOM.step : 1 / ZOOM.step, event.clientX - frame.left, event.clientY - frame.top);
  }, { passive: false });
  svg.addEventListener("pointerdown", (event) => {
    dragging.from = { x: event.clientX, y: event.clientY };
    dragging.moved = false;
  });
  svg.addEventListener("pointermove", (event) => {
    if (dragging.from === null || event.buttons === 0) return;
    const [dx, dy] = [event.clientX - dragging.from.x, event.clientY - dragging.from.y];
    // A click may tremble; capture only once it is a drag, since captured pointers click on the picture as a whole.
    if (!dragging.moved && Math.hypot(dx, dy) < 4) return;
    if (!dragging.moved) svg.setPointerCapture(event.pointerId);
    dragging.moved = true;
    dragging.from = { x: event.clientX, y: event.clientY };
    svg.classList.add("dragged");
    move(dx, dy);
  });
  const end = () => { dragging.from = null; svg.classList.remove("dragged"); };
  svg.addEventListener("pointerup", end);
  svg.addEventListener("pointercancel", end);
}

function pictureControls() {
  const svg = byId("picture");
  gestures(svg, (dx, dy) => { view.x += dx; view.y += dy; showView(); }, zoomPicture);
  const middle = (factor) => {
    const frame = svg.getBoundingClientRect();
    zoomPicture(factor, frame.width / 2, frame.height / 2);
  };
  byId("zoom-in").addEventListener("click", () => middle(ZOOM.step));
  byId("zoom-out").addEventListener("click", () => middle(1 / ZOOM.step));
  byId("zoom-fit").addEventListener("click", fitPicture);
}
