// Elements and texts. Texts of runs reach the page here alone, as text nodes and attributes.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "line", "polyline", "path", "text", "circle", "title"]);

// What a reader would not see, or what reorders a line, is shown as an escape; line ends stay.
function shown(value) {
  return String(value).replace(/[^\P{C}\n\t]|[\u2028\u2029]/gu, (found) => {
    const code = found.codePointAt(0).toString(16);
    return code.length > 2 ? `\\u{${code}}` : `\\x${code.padStart(2, "0")}`;
  });
}

function make(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag)
    ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined)
      element.setAttribute(name, shown(value));
  }
  element.append(...children.map((child) => child instanceof Node ? child : shown(child)));
  return element;
}

function write(element, text) {
  const wanted = shown(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

const isNumber = (value) => value !== null && value !== undefined && value !== "";

// Six digits, as in a run's log lines; numbers that are not finite come as their names.
function short(value) {
  if (!isNumber(value)) return "";
  const number = Number(value);
  if (!Number.isFinite(number)) return String(value);
  if (number === 0 || Math.abs(number) >= 1e-4) return String(Number(number.toPrecision(6)));
  const [digits, power] = number.toExponential(5).split("e-");
  return `${Number(digits)}e-${power.padStart(2, "0")}`;
}

function rate(value) {
  if (!isNumber(value)) return "";
  const number = Number(value);
  if (!Number.isFinite(number)) return String(value);
  return number.toLocaleString("en", { maximumFractionDigits: Math.abs(number) < 100 ? 2 : 0 });
}

const count = (value) => isNumber(value) ? Number(value).toLocaleString("en") : "";
const counted = (number, what) => `${count(number)} ${what}${number === 1 ? "" : "s"}`;
const percent = (share) => isNumber(share) ? `${(100 * share).toFixed(1)} %` : "";

function bytes(value) {
  if (!isNumber(value)) return "";
  let number = value, unit = 0;
  const units = ["B", "kB", "MB", "GB", "TB"];
  while (number >= 1000 && unit < units.length - 1) { number /= 1000; unit += 1; }
  return `${unit ? number.toPrecision(3) : number} ${units[unit]}`;
}

// Hours, minutes and seconds of a job, as csctl has them.
function clock(seconds) {
  if (!isNumber(seconds)) return "";
  const whole = Math.floor(seconds), hours = Math.floor(whole / 3600);
  const two = (number) => String(number).padStart(2, "0");
  const rest = `${hours ? two(Math.floor(whole / 60) % 60) : Math.floor(whole / 60)}:${two(whole % 60)}`;
  return hours ? `${hours}:${rest}` : rest;
}

// Three significant digits with a unit; from 100 s on hours, minutes and seconds.
function duration(seconds) {
  if (!isNumber(seconds)) return "";
  if (seconds === 0) return "0 s";
  if (seconds < 9.995e-4) return `${(1e6 * seconds).toPrecision(3)} µs`;
  if (seconds < 0.9995) return `${(1e3 * seconds).toPrecision(3)} ms`;
  if (seconds < 99.95) return `${seconds.toPrecision(3)} s`;
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600);
  const rest = [Math.floor(whole / 60) % 60, whole % 60].map((n) => String(n).padStart(2, "0"));
  return `${hours}:${rest.join(":")}`;
}

function moment(text) {
  if (!text) return "";
  const date = new Date(text), two = (number) => String(number).padStart(2, "0");
  const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function stateClass(state) {
  if (["FAILED", "TIMEOUT", "LOST", "failed"].includes(state)) return "failed";
  return ["RUNNING", "running"].includes(state) ? "running" : "";
}

const isLive = (state) => ["RUNNING", "PENDING", "running"].includes(state);

// A list of named values; those without one are left out.
function facts(entries) {
  const items = entries.filter(([, value]) => isNumber(value)).map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  return make("dl", {}, ...items);
}

// A table of columns {title, value(row), text(row), number, node(row)}; heads sort it.
class SortedTable {
  constructor(columns, key, sortedBy = null, descending = false) {
    this.columns = columns; this.key = key; this.lines = new Map(); this.rows = [];
    this.by = columns.find((column) => column.title === sortedBy) ?? null;
    this.sign = descending ? -1 : 1;
    this.heads = columns.map((column) => make("th",
      { scope: "col", class: `${column.number ? "number" : ""} ${column.extra ?? ""}` },
      column.value ? make("button", { onclick: () => this.sortBy(column) }, column.title)
        : column.title));
    this.body = make("tbody");
    this.element = make("table", {}, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
  }

  sortBy(column) {
    this.sign = this.by === column ? -this.sign : 1;
    this.by = column;
    this.show(this.rows);
  }

  show(rows) {
    this.rows = rows;
    const ordered = this.by ? [...rows].sort((a, b) => this.compare(a, b)) : rows;
    const wanted = ordered.map((row) => this.line(row));
    const present = [...this.body.children];
    if (wanted.length !== present.length || wanted.some((line, at) => line !== present[at]))
      this.body.replaceChildren(...wanted);
    const keys = new Set(rows.map(this.key));
    for (const key of this.lines.keys()) if (!keys.has(key)) this.lines.delete(key);
    this.heads.forEach((head, at) => {
      if (this.columns[at] !== this.by) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", this.sign > 0 ? "ascending" : "descending");
    });
  }

  // Rows without a value come last in both directions.
  compare(a, b) {
    const [first, second] = [this.by.value(a), this.by.value(b)];
    const has = (value) => isNumber(value) && !(this.by.number && Number.isNaN(Number(value)));
    if (!has(first) || !has(second)) return has(second) - has(first);
    if (this.by.number) return this.sign * (Number(first) - Number(second));
    return this.sign * String(first).localeCompare(String(second), "en", { numeric: true });
  }

  line(row) {
    const key = this.key(row);
    if (!this.lines.has(key)) {
      const cells = this.columns.map((column) => make("td",
        { class: `${column.number ? "number" : column.style ?? "text"} ${column.extra ?? ""}` },
        ...(column.node ? [column.node(row)] : [])));
      this.lines.set(key, make("tr", { "data-key": key }, ...cells));
    }
    const line = this.lines.get(key);
    this.columns.forEach((column, at) => {
      const cell = line.cells[at];
      if (!column.node) {
        const text = column.text ? column.text(row) : column.value(row) ?? "";
        write(cell, text);
        if (!column.number && String(text).length > 20) cell.title = shown(text);
      }
      if (column.state) cell.className = `text ${column.state(row)}`;
    });
    return line;
  }
}
