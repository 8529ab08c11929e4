// What was built, sums of a step, and what the rules did.

function build() {
  const { model, options, targets, sha256, kernels } = data.manifest;
  byId("title").textContent = `unglue report: ${model.name}`;
  byId("build").textContent = `${model.layers.length} layers, hidden width ${model.hidden_size}, ${model.streams} residual `
    + `streams, vocabulary ${model.vocab_size}; activations ${options.dtype}, numerics ${options.numerics}, cover `
    + `${options.cover}, contexts of at most ${options.max_ctx} tokens; code for ${targets.join(", ")}; `
    + `${kernels.length} distinct kernels; bundle sha256 ${sha256}`;
  const from = [
    ["counted", "in the launch lists and kernels of this bundle"],
    [modelled, `by the cost model of ${report.costs.target}, with full launch lists and full contexts, never measured`],
    ["compiled", `read from the finished ${GPU} code`],
  ];
  if (data.emulated) from.push(["emulated", "by running one launch of each kernel in the emulator"]);
  if (data.measured) from.push([measuredTag, "by a profiler, median of one launch"]);
  byId("origin").replaceChildren("Where figures are from: ",
    ...from.flatMap(([name, how]) => [tag(name), ` ${how}. `]));
}

function times(a, b) {
  return b > 0 ? `${(a / b).toFixed(1)}x` : "-";
}

function totals(list) {
  const columns = [
    { head: "rows", number: true, tag: "counted" }, { head: "sequences", number: true, tag: "counted" },
    { head: "launches", number: true, tag: "counted" }, { head: "unfused", number: true, tag: "counted" },
    { head: "fewer", number: true, tag: "counted" }, { head: "us", number: true, tag: modelled },
    { head: "unfused us", number: true, tag: modelled }, { head: "faster", number: true, tag: modelled },
    { head: "DRAM", number: true, tag: modelled }, { head: "cache", number: true, tag: modelled },
    { head: "FLOPs", number: true, tag: modelled }, { head: "arena", number: true, tag: "counted" },
    { head: "unshared", number: true, tag: "counted" },
  ];
  const rows = report.buckets.map((b) => [
    String(b.rows_max), String(b.seqs_max), String(b.total.launches), String(b.unfused_launches),
    times(b.unfused_launches, b.total.launches), usText(b.total.predicted_ns), usText(b.unfused_ns),
    times(b.unfused_ns, b.total.predicted_ns), bytesText(b.total.dram_bytes), bytesText(b.total.cache_bytes),
    countText(b.total.flops), bytesText(b.arena_bytes), bytesText(b.unshared_bytes),
  ]);
  byId("totals-lists").replaceChildren(table("By launch list: fused, and with one op a kernel", columns, rows));
  const bucket = report.buckets[list];
  byId("totals-class").replaceChildren(sums("By class", "class", bucket, Object.keys(bucket.by_class), bucket.by_class));
  const bodies = bodiesOf(list);
  const kinds = sums("By layer kind", "layer kind", bucket, bodies.map((b) => b.body), bucket.by_body, bodies);
  byId("totals-body").replaceChildren(kinds);
  byId("totals-steps").replaceChildren(stepLoads());
  byId("totals-activations").replaceChildren(activations(bucket, bodies));
}

// Steps of a few rows: fused, with one op a kernel, and at the very least.
function stepLoads() {
  const number = true;
  const columns = [{ head: "rows", number }, { head: "class" }, { head: "launches", number, tag: "counted" },
    { head: "unfused", number, tag: "counted" }, { head: "us", number, tag: modelled },
    { head: "unfused us", number, tag: modelled }, { head: "floor us", number, tag: modelled },
    { head: "floor bytes", number, tag: modelled }];
  const row = (rows, name, c) => [String(rows), name, String(c.fused.launches), String(c.unfused.launches),
    usText(c.fused.predicted_ns), usText(c.unfused.predicted_ns), usText(c.floor.ns), bytesText(c.floor.bytes)];
  const rows = report.steps.flatMap((step) => [
    ...Object.entries(step.by_class).map(([name, c]) => row(step.rows, name, c)), row(step.rows, "all", step.all)]);
  return table("Steps of a few rows, by class of kernel", columns, rows);
}

function activations(bucket, bodies) {
  const number = true;
  const columns = [{ head: "one call of" }, { head: "moved", number, tag: modelled }, { head: "least", number, tag: modelled },
    { head: "ratio", number, tag: modelled }, { head: "issued", number, tag: modelled },
    { head: "pointwise", number, tag: "counted" }];
  const row = (name, a, pointwise) => [name, bytesText(a.moved_bytes), bytesText(a.least_bytes),
    a.least_bytes > 0 ? (a.moved_bytes / a.least_bytes).toFixed(2) : "-", bytesText(a.issued_bytes), String(pointwise)];
  const rows = bodies.map((b) => row(b.body, b.activations, b.pointwise));
  return table(`Activations, steps of at most ${plural(bucket.rows_max, "row")}`, columns, rows,
    row("whole step", bucket.activations, bucket.pointwise_launches));
}

function sums(caption, head, bucket, keys, of, bodies = null) {
  const number = true;
  const kinds = bodies === null ? [] : [{ head: "a call", number, tag: "counted" }, { head: "unfused", number, tag: "counted" }];
  const columns = [{ head }, { head: "launches", number, tag: "counted" }, ...kinds, { head: "us", number, tag: modelled },
    { head: "share", number, tag: modelled }, { head: "DRAM", number, tag: modelled }, { head: "cache", number, tag: modelled }];
  const rows = keys.map((key, i) => {
    const t = of[key];
    const share = t.predicted_ns / Math.max(bucket.total.predicted_ns, 1);
    const call = bodies === null ? [] : [String(bodies[i].kernels.length), String(bodies[i].cover.unfused)];
    return [key, String(t.launches), ...call, usText(t.predicted_ns), `${(share * 100).toFixed(1)}%`,
      bytesText(t.dram_bytes), bytesText(t.cache_bytes)];
  });
  return table(`${caption}, steps of at most ${plural(bucket.rows_max, "row")}`, columns, rows);
}

// Bodies of `repeat` have e-graphs of their own, named after the body that they are in.
function eGraphs(list, before = "") {
  return list.flatMap((s) => [{ ...s, path: before + s.body }, ...eGraphs(s.repeats, `${before}${s.body}/`)]);
}

function rules() {
  const graphs = eGraphs(report.saturation);
  const byRule = new Map();
  for (const g of graphs) {
    for (const [rule, fired] of Object.entries(g.fired)) {
      const row = byRule.get(rule) || { fired: 0, paid: 0, bodies: [] };
      row.fired += fired;
      row.paid += g.paid[rule] || 0;
      row.bodies.push(`${g.path} ${fired}/${g.paid[rule] || 0}`);
      byRule.set(rule, row);
    }
  }
  const names = [...byRule.keys()].sort();
  const number = true;
  const rows = names.map((name) => {
    const row = byRule.get(name);
    return [name, String(row.fired), String(row.paid), row.bodies.join(", ")];
  });
  const columns = [{ head: "rule" }, { head: "fired", number }, { head: "paid", number }, { head: "by body: fired/paid" }];
  byId("rules").replaceChildren(table("Rules that fired", columns, rows));
  for (const row of byId("rules").querySelectorAll("tbody tr")) row.lastElementChild.className = "wide";
  const graphColumns = [{ head: "body" }, { head: "ops", number }, { head: "after", number }, { head: "e-nodes", number },
    { head: "classes", number }, { head: "rounds", number }, { head: "stopped" }, { head: "class" }];
  const graphRows = graphs.map((g) => [g.path, String(g.nodes_in), String(g.nodes_out), String(g.e_nodes),
    String(g.classes), String(g.iterations), g.stop, g.exactness]);
  byId("graphs").replaceChildren(table("E-graphs", graphColumns, graphRows));
  const loose = (level) => level.bodies.reduce((sum, b) => sum + b.loose, 0);
  const levelColumns = [{ head: "numerics" }, { head: "launches", number }, { head: "predicted", number },
    { head: "loose", number }];
  const levelRows = report.classes.map((level) => [level.numerics, String(level.launches), usText(level.predicted_ns),
    String(loose(level))]);
  byId("levels").replaceChildren(table("What each level would cost, a step of 1 row", levelColumns, levelRows));
}
