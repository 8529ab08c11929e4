// Elements, and figures as text.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function drawn(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function byId(id) {
  return document.getElementById(id);
}

function tag(name) {
  return element("span", { class: "tag", "data-tag": name.split(" ")[0] }, name);
}

// Three digits or so, in powers of 1024, as the text report has them.
function bytesText(n) {
  let value = n;
  for (const unit of ["B", "K", "M", "G"]) {
    if (value < 1000) return (unit === "B" || value >= 100 ? value.toFixed(0) : value.toFixed(1)) + unit;
    value /= 1024;
  }
  return `${value.toFixed(1)}T`;
}

// Three digits or so, in powers of 1000.
function countText(n) {
  let value = n;
  for (const unit of ["", "k", "M", "G", "T"]) {
    if (value < 1000 || unit === "T") return (unit === "" || value >= 100 ? value.toFixed(0) : value.toFixed(1)) + unit;
    value /= 1000;
  }
  return String(n);
}

// Nanoseconds as microseconds.
function usText(ns) {
  return (ns / 1000).toFixed(1);
}

function plural(n, word) {
  return `${n} ${word}${n === 1 ? "" : "s"}`;
}

// `columns`: { head, tag, number }; `rows`: arrays of texts or elements.
function table(caption, columns, rows, foot = null) {
  const cells = (kind, values) => values.map((value, i) => element(kind, { class: columns[i].number ? "number" : null }, value));
  const heads = columns.map((c) => {
    const under = c.tag ? [element("br"), tag(c.tag)] : [];
    return element("th", { scope: "col", class: c.number ? "number" : null }, c.head, ...under);
  });
  return element("table", {},
    caption === null ? null : element("caption", {}, caption),
    element("thead", {}, element("tr", {}, ...heads)),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row)))),
    foot === null ? null : element("tfoot", {}, element("tr", {}, ...cells("td", foot))));
}
