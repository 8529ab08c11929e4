// The table of kernels: sorted by any column, filtered by text, class and layer kind.

const dash = (text) => (value) => (value === null ? "-" : text(value));
const COLUMNS = [
  { key: "name", head: "kernel", tag: "counted", text: String },
  { key: "class", head: "class", tag: "counted", text: String },
  { key: "exactness", head: "exactness", tag: "counted", text: String },
  { key: "launches", head: "launches", tag: "counted", number: true, text: String },
  { key: "workgroups", head: "workgroups", tag: "counted", number: true, text: String },
  { key: "vgprs", head: "VGPRs", tag: "compiled", number: true, text: dash(String) },
  { key: "sgprs", head: "SGPRs", tag: "compiled", number: true, text: dash(String) },
  { key: "lds", head: "LDS", tag: "compiled", number: true, text: dash(bytesText) },
  { key: "occupancy", head: "occupancy", tag: "compiled", number: true, text: dash(String) },
  { key: "spills", head: "spills", tag: "compiled", number: true, text: dash(String) },
  { key: "code", head: "code", tag: "compiled", number: true, text: dash(bytesText) },
  { key: "dram", head: "DRAM", tag: modelled, number: true, text: bytesText },
  { key: "cache", head: "cache", tag: modelled, number: true, text: bytesText },
  { key: "flops", head: "FLOPs", tag: modelled, number: true, text: countText },
  { key: "intensity", head: "FLOPs a byte", tag: modelled, number: true, text: dash((n) => n.toFixed(2)) },
  { key: "bound", head: "bound", tag: modelled, text: String },
  { key: "ns", head: "us", tag: modelled, number: true, text: usText },
  { key: "gap", head: "gap", tag: modelled, number: true, text: usText },
  { key: "saves", head: "saves", tag: modelled, number: true, text: usText },
  { key: "serial", head: "serial chain", tag: modelled, text: String },
  ...otherTargets.map((name) => (
    { key: `ns-${name}`, head: `us, ${name}`, tag: modelled, number: true, text: dash(usText) })),
  { key: "share", head: "share", tag: modelled, number: true, text: (n) => `${(n * 100).toFixed(1)}%` },
];
if (data.emulated) {
  COLUMNS.push(
    { key: "instructions", head: "instructions", tag: "emulated", number: true, text: dash(countText) },
    { key: "loaded", head: "loaded", tag: "emulated", number: true, text: dash(bytesText) });
}
if (data.measured) {
  COLUMNS.push(
    { key: "count", head: "count", tag: measuredTag, number: true, text: dash(String) },
    { key: "measured", head: "median us", tag: measuredTag, number: true, text: dash((n) => n.toFixed(1)) },
    { key: "ratio", head: "by predicted", tag: measuredTag, number: true, text: dash((n) => n.toFixed(2)) });
}

const sorting = { key: null, down: false };

function kernelTable(rows) {
  const heads = COLUMNS.map((column) => {
    const button = element("button", { type: "button", "data-key": column.key }, column.head);
    button.addEventListener("click", () => sortBy(column));
    return element("th", { scope: "col", class: column.number ? "number" : null, "data-key": column.key },
      button, element("br"), tag(column.tag));
  });
  byId("kernels").replaceChildren(
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...rows.map(kernelRow)),
    element("tfoot", {}, element("tr", {})));
  choices(byId("filter-class"), [...new Set(rows.map((row) => row.class))].sort());
  choices(byId("filter-body"), [...new Set(rows.flatMap((row) => row.bodies))]);
  arrangeTable(rows);
}

function kernelRow(row) {
  const cells = COLUMNS.map((column) =>
    element("td", { class: column.number ? "number" : null }, column.text(row[column.key])));
  const line = element("tr", { "data-kernel": row.name }, ...cells);
  line.addEventListener("click", () => select(row.name, row.bodies.includes(state.body) ? state.body : row.bodies[0]));
  return line;
}

function choices(select, values) {
  const before = select.value;
  const options = values.map((value) => element("option", { value }, value));
  select.replaceChildren(element("option", { value: "" }, "all"), ...options);
  select.value = values.includes(before) ? before : "";
}

// The first click on numbers puts the largest first.
function sortBy(column) {
  sorting.down = sorting.key === column.key ? !sorting.down : Boolean(column.number);
  sorting.key = column.key;
  arrangeTable(state.rows);
}

// What is not there comes last, whichever way the rest goes; equal ones keep launch order.
function compareRows(a, b) {
  const [x, y] = [a[sorting.key], b[sorting.key]];
  if (x === null || y === null) return (x === null) - (y === null);
  const order = typeof x === "number" ? x - y : x < y ? -1 : Number(x > y);
  return sorting.down ? -order : order;
}

function arrangeTable(rows) {
  const sorted = sorting.key === null ? rows : [...rows].sort(compareRows);
  const body = byId("kernels").tBodies[0];
  const lines = new Map([...body.rows].map((line) => [line.dataset.kernel, line]));
  body.append(...sorted.map((row) => lines.get(row.name)));
  for (const head of byId("kernels").querySelectorAll("th")) {
    if (head.dataset.key === sorting.key) head.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
  filterTable(rows);
}

function filterTable(rows) {
  const text = byId("filter").value.trim().toLowerCase();
  const [kind, body] = [byId("filter-class").value, byId("filter-body").value];
  const wanted = (row) => (text === "" || [row.name, row.class, row.bound].some((t) => t.toLowerCase().includes(text)))
    && (kind === "" || row.class === kind) && (body === "" || row.bodies.includes(body));
  const shown = rows.filter(wanted);
  const names = new Set(shown.map((row) => row.name));
  for (const line of byId("kernels").tBodies[0].rows) line.hidden = !names.has(line.dataset.kernel);
  byId("shown").textContent = `${shown.length} of ${plural(rows.length, "kernel")}`;
  footTable(shown);
}

// Sums over the launches of the kernels that are shown.
function footTable(shown) {
  const sum = (key) => shown.reduce((total, row) => total + row.launches * row[key], 0);
  const totals = {
    name: "all that is shown", launches: String(shown.reduce((total, row) => total + row.launches, 0)),
    dram: bytesText(sum("dram")), cache: bytesText(sum("cache")), flops: countText(sum("flops")),
    ns: usText(sum("ns")), gap: usText(sum("gap")),
    share: `${(shown.reduce((total, row) => total + row.share, 0) * 100).toFixed(1)}%`,
  };
  const cells = COLUMNS.map((column) => element("td", { class: column.number ? "number" : null }, totals[column.key] || ""));
  byId("kernels").tFoot.rows[0].replaceChildren(...cells);
}

function unmatched() {
  if (!data.measured) return;
  const { unknown, missing } = data.measured;
  const rows = unknown.map((k) => [k.name, String(k.count), k.median_us.toFixed(1)]);
  const columns = [{ head: "kernel" }, { head: "count", tag: measuredTag, number: true },
    { head: "median us", tag: measuredTag, number: true }];
  byId("unmatched").replaceChildren(
    element("p", {}, `Kernels of the bundle that the trace does not have: ${missing.join(", ") || "none"}`),
    table("Kernels of the trace that the bundle does not have", columns, rows));
}
