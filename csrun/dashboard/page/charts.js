// Charts: lines over steps or time, stacked areas, and spans of a step.

const NARROW = matchMedia("(max-width: 40rem)");  // a phone: texts would be too small to read
const wide = () => NARROW.matches ? 400 : 720;
const HIGH = 230, LEFT = 62, RIGHT = 12, UNIT = 60, TOP = 8, BOTTOM = 26;
const MOST_DRAWN = 1500;  // points of a line: more are no wider than a pixel

function ticks(low, high, wanted) {
  const span = high - low || 1, raw = span / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const size = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw) ?? 10 * power;
  const found = [];
  for (let at = Math.ceil(low / size - 1e-9) * size; at <= high + size * 1e-9; at += size)
    found.push(Math.abs(at) < size * 1e-9 ? 0 : at);
  return found;
}

function tickText(value) {
  const size = Math.abs(value);
  if (size >= 1e6 || (size && size < 1e-3)) return value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

// An axis from low to high, on pixels from start to end; logarithmic if that is asked for.
function axis(low, high, start, end, logarithmic = false) {
  const map = logarithmic ? Math.log10 : (value) => value;
  if (map(low) === map(high)) { const pad = Math.abs(low) * .05 || .5; low -= logarithmic ? low / 2 : pad; high += pad; }
  const [from, to] = [map(low), map(high)];
  const at = (value) => start + (map(value) - from) / (to - from) * (end - start);
  let marks = ticks(low, high, 5);
  if (logarithmic) {
    marks = [];
    for (let power = Math.ceil(from); power <= to; power += 1) marks.push(10 ** power);
  }
  return { at, marks, low, high };
}

// Each bucket of points keeps its first, smallest, largest and last one.
function thinned(points) {
  if (points.length <= MOST_DRAWN) return points;
  const size = Math.ceil(points.length / (MOST_DRAWN / 4)), found = [];
  for (let begin = 0; begin < points.length; begin += size) {
    const part = points.slice(begin, begin + size);
    const low = part.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = part.reduce((a, b) => (b[1] > a[1] ? b : a));
    const kept = new Set([part[0], low, high, part[part.length - 1]]);
    found.push(...part.filter((point) => kept.has(point)));
  }
  return found;
}

function timeUnit(seconds) {
  if (seconds < 180) return [1, "s"];
  return seconds < 3 * 3600 ? [60, "min"] : [3600, "h"];
}

function frame(x, y, xTitle) {
  const parts = [];
  for (const mark of y.marks)
    parts.push(make("line", { class: "grid", x1: LEFT, x2: wide() - RIGHT, y1: y.at(mark), y2: y.at(mark) }),
      make("text", { x: LEFT - 6, y: y.at(mark) + 4, "text-anchor": "end" }, tickText(mark)));
  for (const mark of x.marks)
    parts.push(make("text", { x: x.at(mark), y: HIGH - 8, "text-anchor": "middle" }, tickText(mark)));
  parts.push(make("text", { x: wide() - RIGHT, y: HIGH - 8, "text-anchor": "end", class: "unit" }, xTitle));
  return parts;
}

function legend(series) {
  return make("ul", { class: "legend" }, ...series.map((line, at) => make("li",
    { class: `s${at % 8}`, title: line.name },
    make("span", { class: "swatch" }), make("span", {}, line.name))));
}

// Lines of series {name, points: [[x, y]]}; x is a step, or seconds with `isTime`.
function lineChart(title, series, { isTime = false, text = short } = {}) {
  const figure = make("figure", { "aria-label": title, "data-chart": title });
  const finite = series.map((line) => line.points.filter(([, y]) => Number.isFinite(y)));
  const all = finite.flat();
  const lost = series.reduce((sum, line) => sum + line.points.length, 0) - all.length;
  if (!all.length) {
    figure.append(make("p", { class: "note" }, lost ? "all values are NaN or infinite" : "no values"));
    return figure;
  }
  const range = (at) => all.reduce(([a, b], point) =>
    [Math.min(a, point[at]), Math.max(b, point[at])], [Infinity, -Infinity]);
  const [left, right] = range(0), [low, high] = range(1);
  const [size, unit] = isTime ? timeUnit(right - left) : [1, "step"];
  const x = axis(left / size, right / size, LEFT, wide() - UNIT);
  const y = axis(low, high, HIGH - BOTTOM, TOP, low > 0 && high / low > 100);
  const svg = make("svg", { viewBox: `0 0 ${wide()} ${HIGH}`, role: "img", "aria-label": title },
    ...frame(x, y, unit));
  finite.forEach((points, at) => {
    const drawn = thinned(points).map(([a, b]) => `${x.at(a / size).toFixed(2)},${y.at(b).toFixed(2)}`);
    svg.append(make("polyline", { class: `series s${at % 8}`, points: drawn.join(" ") }));
    if (points.length === 1)
      svg.append(make("circle", { class: `dot s${at % 8}`, r: 3, cx: x.at(points[0][0] / size), cy: y.at(points[0][1]) }));
  });
  const cursor = make("line", { class: "cursor", y1: TOP, y2: HIGH - BOTTOM, x1: -9, x2: -9 });
  const readout = make("div", { class: "readout" },
    lost ? `${lost} values are NaN or infinite and not drawn` : "");
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * wide();
    const wanted = (x.low + (at - LEFT) / (wide() - UNIT - LEFT) * (x.high - x.low)) * size;
    const near = series.map((line) => nearest(line.points, wanted));
    const first = near.find((point) => point);
    if (!first) return;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x.at(first[0] / size));
    const where = isTime ? duration(first[0]) : `step ${count(first[0])}`;
    write(readout, `${where}: ${series.map((line, index) =>
      near[index] ? `${line.name} ${text(near[index][1])}` : "").filter(Boolean).join(", ")}`);
  });
  figure.append(make("div", { class: "wide" }, svg));
  if (series.length > 1) figure.append(legend(series));
  figure.append(readout);
  return figure;
}

function nearest(points, x) {
  let best = null;
  for (const point of points)
    if (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
  return best;
}

// Shares of a whole, stacked: rows [{name, values}] over xs; each column adds up to 1.
function stackedChart(title, xs, rows, isTime) {
  const [size, unit] = isTime ? timeUnit(xs[xs.length - 1] - xs[0]) : [1, "step"];
  const x = axis(xs[0] / size, xs[xs.length - 1] / size, LEFT, wide() - UNIT);
  const y = axis(0, 100, HIGH - BOTTOM, TOP);
  const svg = make("svg", { viewBox: `0 0 ${wide()} ${HIGH}`, role: "img", "aria-label": title },
    ...frame(x, y, unit));
  const keep = Math.ceil(xs.length / MOST_DRAWN);
  const columns = xs.map((_, at) => at).filter((at) => at % keep === 0 || at === xs.length - 1);
  const totals = xs.map((_, at) => rows.reduce((sum, row) => sum + row.values[at], 0) || 1);
  const floor = xs.map(() => 0);
  rows.forEach((row, number) => {
    const upper = [], lower = [];
    for (const at of columns) {
      lower.push(`${x.at(xs[at] / size).toFixed(2)} ${y.at(100 * floor[at]).toFixed(2)}`);
      floor[at] += row.values[at] / totals[at];
      upper.push(`${x.at(xs[at] / size).toFixed(2)} ${y.at(100 * floor[at]).toFixed(2)}`);
    }
    svg.append(make("path", { class: `area s${number % 8}`, "data-row": row.name,
      d: `M${upper.join("L")}L${lower.reverse().join("L")}Z` }));
  });
  return make("figure", { "aria-label": title, "data-chart": title },
    make("div", { class: "wide" }, svg), legend(rows));
}

// Spans of a step, one line a track: [{process, track, name, began_ms, ended_ms}].
function spanChart(title, spans, atMs, now) {
  const tracks = [...new Set(spans.map((span) => `${span.process}: ${span.track}`))];
  const line = 20, left = NARROW.matches ? 150 : 190, high = tracks.length * line + 26;
  const end = spans.reduce((most, span) => Math.max(most, span.ended_ms), 0) || 1;
  const begin = Math.min(0, spans.reduce((least, span) => Math.min(least, span.began_ms), 0));
  const x = axis(Math.max(begin, -end * .25), end, left, wide() - 20);
  const svg = make("svg", { viewBox: `0 0 ${wide()} ${high}`, role: "img", "aria-label": title });
  for (const mark of x.marks)
    svg.append(make("line", { class: "grid", x1: x.at(mark), x2: x.at(mark), y1: 0, y2: high - 20 }),
      make("text", { x: x.at(mark), y: high - 6, "text-anchor": "middle" }, `${tickText(mark)} ms`));
  tracks.forEach((track, row) => {
    const group = make("g", { class: `track s${row % 8}` },
      make("text", { x: left - 8, y: row * line + 14, "text-anchor": "end" }, track));
    for (const span of spans.filter((each) => `${each.process}: ${each.track}` === track)) {
      const from = Math.max(x.at(Math.max(span.began_ms, x.low)), left);
      const width = Math.max(x.at(Math.min(span.ended_ms, x.high)) - from, .5);
      group.append(make("rect", { x: from, y: row * line + 3, width, height: line - 6,
        class: now && span.began_ms === now.began_ms && span.name === now.name ? "now" : null },
      make("title", {}, `${span.name}: ${short(span.ended_ms - span.began_ms)} ms`)));
    }
    svg.append(group);
  });
  svg.append(make("line", { class: "cursor", x1: x.at(atMs), x2: x.at(atMs), y1: 0, y2: high - 20 }));
  return make("figure", { "aria-label": title }, make("div", { class: "wide" }, svg));
}
