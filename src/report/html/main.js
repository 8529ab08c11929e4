// What is chosen, and what follows from it.

const state = { list: 0, body: null, kernel: null, query: "", rows: [] };

function showList(list) {
  state.list = list;
  state.rows = kernelRows(list);
  totals(list);
  kernelTable(state.rows);
  const bodies = bodiesOf(list).map((body) => body.body);
  byId("bodies").replaceChildren(...bodies.map((name) => {
    const button = element("button", { type: "button", "data-body": name }, name);
    button.addEventListener("click", () => showBody(name));
    return button;
  }));
  const largest = [...bodies].sort((a, b) => predicted(b) - predicted(a))[0];
  showBody(bodies.includes(state.body) ? state.body : largest);
  timeline(list);
  if (!state.rows.some((row) => row.name === state.kernel)) state.kernel = null;
  details();
  mark();
}

function predicted(body) {
  return report.buckets[state.list].by_body[body].predicted_ns;
}

function showBody(name) {
  const body = bodiesOf(state.list).find((b) => b.body === name);
  if (!body) return;
  state.body = name;
  for (const button of byId("bodies").children) button.setAttribute("aria-pressed", button.dataset.body === name);
  picture(body);
  mark();
}

function select(kernel, body) {
  state.kernel = kernel;
  if (body !== state.body) showBody(body);
  details();
  mark();
}

// Marks what is selected and what the search finds, in the picture, the table and the timeline.
function mark() {
  const query = state.query;
  const found = new Set(state.rows
    .filter((row) => [row.name, row.class, ...row.ops].some((text) => searchFinds(query, text)))
    .map((row) => row.name));
  document.body.classList.toggle("searching", query !== "");
  for (const node of document.querySelectorAll("[data-kernel]")) {
    node.classList.toggle("hit", found.has(node.dataset.kernel));
    node.classList.toggle("selected", node.dataset.kernel === state.kernel);
  }
  let ops = 0;
  for (const node of document.querySelectorAll("[data-op]")) {
    const hit = searchFinds(query, node.dataset.op);
    node.classList.toggle("hit", hit);
    ops += Number(hit);
  }
  const body = bodiesOf(state.list).find((b) => b.body === state.body);
  const selected = body ? body.kernels.findIndex((k) => k.name === state.kernel) : -1;
  for (const edge of document.querySelectorAll(".edge")) {
    edge.classList.toggle("near", selected >= 0 && [edge.dataset.from, edge.dataset.to].includes(String(selected)));
  }
  byId("hits").textContent = query === "" ? ""
    : `${plural(found.size, "kernel")} of the step, ${plural(ops, "op")} of ${state.body}`;
}

function list(items, kind = "ul") {
  return items.length === 0 ? element("p", {}, "none") : element(kind, {}, ...items.map((item) => element("li", {}, item)));
}

function verdictText(v) {
  switch (v.kind) {
    case "obstacle": return `${v.rule}: ${v.detail}`;
    case "cost": return v.loss_ns === 0 ? "gains nothing" : `would cost ${v.loss_ns} ns (${modelled})`;
    case "cycle": return "another kernel lies between";
    case "forbidden": return "the options forbid it";
    default: return "not tried";
  }
}

function removalText(r) {
  return `${usText(r.total_ns)} us: ${usText(r.launch_ns)} us of its own, ${usText(r.gap_ns)} us of gap, and `
    + `${usText(r.bytes_ns)} us for ${bytesText(r.bytes)} between it and them`;
}

function details() {
  const panel = byId("details");
  const body = bodiesOf(state.list).find((b) => b.body === state.body);
  const k = body ? body.kernels.find((x) => x.name === state.kernel) : undefined;
  const row = state.rows.find((r) => r.name === state.kernel);
  if (!k || !row) {
    panel.replaceChildren(element("p", { class: "hint" }, "Click on a kernel."));
    return;
  }
  const entry = entries.get(k.name);
  const facts = COLUMNS.filter((c) => c.key !== "name").flatMap((c) =>
    [element("dt", {}, c.head), element("dd", {}, c.text(row[c.key]), " ", tag(c.tag))]);
  const section = (title, content) => [element("h3", {}, title), content];
  panel.replaceChildren(
    element("h3", {}, k.name),
    element("p", {}, k.schedule),
    element("dl", {}, ...facts),
    ...section("Reads", list(k.reads.map(portText))),
    ...section("Writes", list(k.writes.map(portText))),
    ...section("Declared in", list(linesByFile(k.lines))),
    ...section("Saves at most, if its neighbours did its work", element("p", {}, removalText(k.removal), " ", tag(modelled))),
    ...section("Orders of summation", list(entry ? entry.orders : [])),
    ...section("Fusions that made it", list(k.steps.map((step) => step.text), "ol")),
    ...section("Not fused with", list(k.rejected.map((r) => `${r.with}: ${verdictText(r.verdict)}`))));
}

function start() {
  build();
  rules();
  unmatched();
  byId("list").append(...report.buckets.map((b, i) =>
    element("option", { value: i }, `at most ${plural(b.rows_max, "row")}`)));
  byId("list").addEventListener("change", (event) => showList(Number(event.target.value)));
  byId("search").addEventListener("input", (event) => {
    state.query = event.target.value.trim().toLowerCase();
    mark();
  });
  for (const id of ["filter", "filter-class", "filter-body"]) {
    byId(id).addEventListener("input", () => filterTable(state.rows));
  }
  pictureControls();
  timelineControls();
  showList(0);
}

start();
