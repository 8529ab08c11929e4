// The embedded data, and what follows from it.

const data = JSON.parse(byId("data").textContent);
const report = data.report;
const modelled = report.tag;
const measuredTag = data.measured ? data.measured.tag : null;
// The target whose machine code has registers to speak of.
const GPU = "gfx1201";
const entries = new Map(data.manifest.kernels.map((k) => [k.name, k]));
// Targets with a machine model beside the one that chose the kernels.
const otherTargets = [...new Set(report.buckets.flatMap((b) => b.bodies).flatMap((b) => b.kernels)
  .flatMap((k) => Object.keys(k.by_target)))].filter((name) => name !== report.costs.target).sort();
const classes = [...new Set(data.manifest.kernels.map((k) => k.class))].sort();
const HUES = [212, 28, 140, 265, 340, 55, 180, 300, 95, 0];

function classColour(name) {
  return `hsl(${HUES[Math.max(classes.indexOf(name), 0) % HUES.length]} 60% 52%)`;
}

// Layer kinds that a launch list has, in the order of the trunk.
function bodiesOf(list) {
  const bucket = report.buckets[list];
  return bucket.bodies.filter((body) => body.body in bucket.by_body);
}

function dramBytes(kernel) {
  return kernel.traffic.weight_bytes + kernel.traffic.state_bytes;
}

function cacheBytes(kernel) {
  return kernel.traffic.reread_bytes + kernel.traffic.written_bytes;
}

// A value at the boundary of a kernel: `v98 (%98): bf16[R, 64], 128B`.
function portText(port) {
  const number = port.value === null ? "" : ` (%${port.value})`;
  return `${port.name}${number}: ${port.ty}${port.bytes === null ? "" : `, ${bytesText(port.bytes)}`}`;
}

// Lines of the model, `file:line` each and ascending, with every file once.
function linesByFile(lines) {
  const files = new Map();
  for (const line of lines) {
    const at = line.lastIndexOf(":");
    const file = line.slice(0, at);
    files.set(file, [...(files.get(file) || []), Number(line.slice(at + 1))]);
  }
  return [...files].map(([file, numbers]) => `${file}:${numbers.sort((a, b) => a - b).join(",")}`);
}

// Ops of a kernel of a body, as `%12 matmul`.
function opsOf(body, kernel) {
  return body.ops.filter((op) => op.kernels.includes(kernel.in_body))
    .map((op) => ({ text: `%${op.value} ${op.op}`, ty: op.ty, alone: op.alone, lines: op.lines }));
}

function emulatedOf(name) {
  const found = data.emulated ? data.emulated.kernels[name] : undefined;
  if (!found) return { instructions: null, loaded: null };
  const sum = (counts) => Object.values(counts || {}).reduce((a, b) => a + b, 0);
  return { instructions: sum(found.counts.instructions), loaded: sum(found.counts.bytes.global_load) };
}

// One row for each kernel that a launch list has, in launch order. Figures that are not there are null.
function kernelRows(list) {
  const bucket = report.buckets[list];
  const launches = new Map();
  for (const [index] of data.launches[list]) {
    const name = data.manifest.kernels[index].name;
    launches.set(name, (launches.get(name) || 0) + 1);
  }
  const rows = new Map();
  for (const body of bodiesOf(list)) {
    for (const kernel of body.kernels) {
      const row = rows.get(kernel.name) || newRow(kernel, launches.get(kernel.name) || 0, bucket);
      row.bodies.push(body.body);
      row.ops.push(...opsOf(body, kernel).map((op) => op.text));
      rows.set(kernel.name, row);
    }
  }
  return [...rows.values()];
}

function newRow(kernel, launches, bucket) {
  const entry = entries.get(kernel.name);
  const compiled = entry && entry.resources[GPU];
  const joined = data.measured ? data.measured.kernels.find((k) => k.name === kernel.name) : undefined;
  return {
    kernel, name: kernel.name, bodies: [], ops: [], class: kernel.class, launches,
    exactness: kernel.exactness, workgroups: kernel.workgroups,
    vgprs: compiled ? compiled.vgprs : null,
    sgprs: compiled ? compiled.sgprs : null,
    spills: compiled ? compiled.vgpr_spills + compiled.sgpr_spills : null,
    code: compiled ? compiled.code_bytes : null,
    lds: compiled ? compiled.lds_bytes : null,
    occupancy: compiled ? compiled.occupancy : null,
    dram: dramBytes(kernel), cache: cacheBytes(kernel), flops: kernel.traffic.flops,
    intensity: kernel.intensity, serial: kernel.serial_chain ? "yes" : "no", saves: kernel.removal.total_ns,
    ...Object.fromEntries(otherTargets.map((name) => [`ns-${name}`, timeOn(kernel, name)])),
    bound: kernel.bound, ns: kernel.predicted_ns, gap: kernel.gap_ns,
    share: launches * (kernel.predicted_ns + kernel.gap_ns) / Math.max(bucket.total.predicted_ns, 1),
    ...emulatedOf(kernel.name),
    measured: joined ? joined.median_us : null,
    ratio: joined ? joined.median_us * 1000 / Math.max(kernel.predicted_ns, 1) : null,
    count: joined ? joined.count : null,
  };
}

function timeOn(kernel, target) {
  return target in kernel.by_target ? kernel.by_target[target].predicted_ns : null;
}

// Whether a search finds a kernel, by its own name, or one of its ops.
function searchFinds(query, text) {
  return query !== "" && text.toLowerCase().includes(query);
}
