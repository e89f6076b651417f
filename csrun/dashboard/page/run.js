// One run: progress, charts, ledger, tasks, MemoryX, checkpoints, files, logs, wafer.

const TITLES = { loss: "loss", local_samples_per_sec: "Rate, samples/s",
  avg_samples_per_sec: "GlobalRate, samples/s", "train/loss_scale": "loss scale",
  lr: "learning rate" };
const titleOf = (tag) => TITLES[tag] ?? tag;
const ROWS = ["compute", "input", "weights", "first_group", "chief", "checkpoint",
  "compile", "script"];
const SECONDS = "seconds/";
const rowTitle = (row) => row.replaceAll("_", " ");  // of the ledger
const runTitle = ({ job_id, name }) => job_id === null ? name : `job ${job_id}: ${name}`;

// Values of a tag as [x, y], x in steps or in seconds since the run's first logged step.
function valuesOf(points, tag, isTime) {
  const begun = points.length ? points[0][1] : 0;
  return points.filter(([, , values]) => tag in values).map(([step, wall, values]) =>
    [isTime ? wall - begun : step, Number(values[tag])]);
}

const tagsOf = (points) => [...new Set(points.flatMap(([, , values]) => Object.keys(values)))].sort();

// Milliseconds per step between logged steps: all rows of the ledger, and the waits for MemoryX.
function stepTimes(points, isTime) {
  const begun = points.length ? points[0][1] : 0, all = [], waits = [];
  points.slice(1).forEach(([step, wall, values], at) => {
    const steps = step - points[at][0];
    if (steps <= 0 || !(`${SECONDS}compute` in values)) return;
    const x = isTime ? wall - begun : step;
    const sum = (rows) => rows.reduce((total, row) => total + Number(values[SECONDS + row] ?? 0), 0);
    all.push([x, 1000 * sum(ROWS) / steps]);
    waits.push([x, 1000 * sum(["weights", "first_group"]) / steps]);
  });
  return [{ name: "step", points: all }, { name: "waits for MemoryX", points: waits }];
}

class RunView {
  constructor(root, id) {
    this.root = root; this.id = id; this.points = []; this.detail = null; this.isTime = false;
    this.tag = null; this.slots = {}; this.texts = {}; this.wafer = undefined;
    root.replaceChildren(make("p", { class: "note" }, "loading"));
  }

  receive({ detail, after, points, usage_after, usage }) {
    if (!this.detail) this.build();
    this.points.splice(after, Infinity, ...points);
    this.tasks.receive(detail.tasks, usage_after, usage);
    this.detail = detail;
    this.show();
  }

  build() {
    const slot = (name, title, full) => {
      this.slots[name] = make("div", { id: `${name}-content` });
      return make("section", { id: name, class: full ? "full" : null },
        make("h3", {}, title), this.slots[name]);
    };
    const named = (name, tag = "p") => (this.slots[name] = make(tag, { id: name }));
    this.logs = new LogPanel(this.id);
    const horizontal = make("select", { id: "horizontal",
      onchange: (event) => { this.isTime = event.target.value === "time"; this.show(); } },
    make("option", { value: "step" }, "step"), make("option", { value: "time" }, "time"));
    this.tags = [];
    this.slots.tags = make("select", { id: "tags",
      onchange: (event) => { this.tag = this.tags[event.target.value]; this.show(); } });
    this.slots.values = make("div");
    this.root.replaceChildren(
      (this.slots.title = make("h2", { class: "name" })), named("subtitle"), named("failure"),
      named("progress", "div"),
      make("p", { id: "unlogged", class: "note" }, "no values were logged yet"),
      make("div", { id: "axis", class: "bar" }, make("label", {}, "Horizontal axis ", horizontal)),
      make("div", { class: "panels" },
        slot("loss", "Loss"), slot("rates", "Rate, samples/s"),
        slot("ledger", "Time by cause, %"), slot("newest", "Newest values"),
        make("section", { id: "others" },
          make("h3", {}, "Other values ", this.slots.tags), this.slots.values),
        slot("memoryx", "MemoryX, and time of a step in ms"),
        slot("tasks", "Tasks", true),
        slot("checkpoints", "Checkpoints"), slot("files", "Files"),
        slot("wafer", "Wafer", true),
        make("section", { id: "logs", class: "full" }, make("h3", {}, "Logs"), this.logs.element),
        slot("performance", "Performance"), slot("details", "Job")));
    this.tasks = new TaskPanel();
    this.slots.tasks.append(this.tasks.element);
    this.ended = new SortedTable(CHECKPOINT_COLUMNS, (line) => line.name);
    this.slots.checkpoints.append(make("div", { class: "wide" }, this.ended.element));
    this.slots.wafer.append(make("p", { class: "note" }, "loading"));
  }

  // The wafer comes with the compile, and again with a trace of it.
  async loadWafer() {
    const files = JSON.stringify([this.detail.files.compile_report, this.detail.files.traces]);
    if (this.waferFiles === files) return;
    this.waferFiles = files;
    try {
      this.wafer = await source.wafer(this.id);
    } catch (error) {
      this.wafer = { error: error.message };
    }
    this.slots.wafer.parentElement.hidden = !this.wafer;
    if (!this.wafer || this.wafer.error) {
      this.slots.wafer.replaceChildren(...(this.wafer
        ? [make("p", { class: "note" }, this.wafer.error)] : []));
    } else {
      this.slots.wafer.replaceChildren(new WaferPanel(this.wafer).element);
    }
    this.showMemoryX();
  }

  // Replaces a part of the page if what it is made of has changed.
  renew(name, data, build) {
    const text = JSON.stringify(data);
    if (this.texts[name] === text) return;
    this.texts[name] = text;
    this.slots[name].replaceChildren(...build());
  }

  show() {
    const { detail, points, isTime } = this, run = detail.run;
    document.title = shown(`${runTitle(detail).slice(0, 60)} - csrun dashboard`);
    write(this.slots.title, runTitle(detail));
    write(this.slots.subtitle, `${detail.state}${detail.model_dir ? `, ${detail.model_dir}` : ""}`);
    this.slots.subtitle.className = `note ${stateClass(detail.state)}`;
    write(this.slots.failure, detail.failure);
    this.slots.failure.hidden = !detail.failure;
    this.renew("progress", run, () => run ? [facts([
      ["Run", run.what],
      ["Step", run.last_step ? `${count(run.step)} of ${count(run.last_step)}` : count(run.step)],
      ["Loss", short(run.loss)],
      ["Rate, samples/s", rate(run.rate)], ["GlobalRate, samples/s", rate(run.global_rate)],
      ["Steps/s", rate(run.steps_per_s)],
      ["Waits for input", percent(run.input_share)],
      ["Ends", moment(run.ends)], ["Updated", moment(run.updated)]])] : []);
    const stamp = [points.length, points[points.length - 1], isTime];
    const lines = (tags) => tags.map((tag) =>
      ({ name: titleOf(tag).replace(/, .*/, ""), points: valuesOf(points, tag, isTime) }));
    this.renew("loss", stamp, () => [lineChart("Loss", lines(["loss"]), { isTime })]);
    this.renew("rates", stamp, () => [lineChart("Rate",
      lines(["local_samples_per_sec", "avg_samples_per_sec"]), { isTime, text: rate })]);
    this.showOthers(stamp, lines);
    this.renew("ledger", [stamp, detail.performance], () => this.ledger());
    this.renew("newest", stamp, () => this.newest());
    for (const name of ["axis", "loss", "rates", "newest", "memoryx"])
      document.querySelector(`#${name}`).hidden = !points.length;
    document.querySelector("#ledger").hidden = !points.length && !detail.performance;
    document.querySelector("#unlogged").hidden = points.length || !isLive(detail.state);
    document.querySelector("#files").hidden = !detail.files.compile_report
      && !detail.files.traces.length && !detail.files.tensorboard;
    document.querySelector("#tasks").hidden = !detail.tasks.length;
    this.ended.show(detail.checkpoints);
    document.querySelector("#checkpoints").hidden = !detail.checkpoints.length;
    this.renew("files", detail.files, () => this.files());
    this.renew("performance", detail.performance, () => this.performance());
    this.renew("details", detail.facts, () => [facts(detail.facts)]);
    this.logs.offer(detail.files.logs, detail.tasks);
    this.loadWafer();
    this.showMemoryX();
  }

  showOthers(stamp, lines) {
    const tags = tagsOf(this.points).filter((tag) => !tag.startsWith(SECONDS) && tag !== "loss"
      && !tag.endsWith("_samples_per_sec"));
    this.tags = tags;
    if (!tags.includes(this.tag)) this.tag = tags[0];
    this.renew("tags", [tags, this.tag], () => tags.map((tag, at) =>
      make("option", { value: at, selected: tag === this.tag }, titleOf(tag))));
    document.querySelector("#others").hidden = !tags.length;
    this.renew("values", [stamp, this.tag], () => tags.length
      ? [lineChart(this.tag, lines([this.tag]), { isTime: this.isTime })] : []);
  }

  ledger() {
    const points = this.points.filter(([, , values]) => `${SECONDS}compute` in values);
    const parts = [];
    if (points.length > 1) {
      const xs = points.map(([step, wall]) => this.isTime ? wall - points[0][1] : step);
      parts.push(stackedChart("Time by cause, %", xs, ROWS.map((name) => ({ name: rowTitle(name),
        values: points.map(([, , values]) => Math.max(0, Number(values[SECONDS + name] ?? 0))) })),
      this.isTime));
    }
    const final = this.detail.performance ? this.detail.performance.ledger : [];
    const rows = final.length ? final : this.detail.run ? this.detail.run.time : [];
    const table = new SortedTable(LEDGER_COLUMNS, (row) => row.row);
    table.show(rows);
    parts.push(make("p", { class: "note" }, final.length
      ? "The whole training, as in performance.json. Speed-up: of a training without this wait"
      : "The logged steps so far"), make("div", { class: "wide" }, table.element));
    return parts;
  }

  newest() {
    if (!this.points.length) return [make("p", { class: "note" }, "nothing was logged yet")];
    const [step, wall, values] = this.points[this.points.length - 1];
    const lines = Object.entries(values).filter(([tag]) => !tag.startsWith(SECONDS)).sort()
      .map(([tag, value]) => make("tr", {}, make("td", { class: "text", title: tag }, titleOf(tag)),
        make("td", { class: "number" }, tag.endsWith("_per_sec") ? rate(value) : short(value))));
    return [make("p", { class: "note" }, `step ${count(step)}, ${moment(wall * 1000)}`),
      make("div", { class: "wide" }, make("table", {}, make("tbody", {}, ...lines)))];
  }

  showMemoryX() {
    const wafer = this.wafer && !this.wafer.error ? this.wafer : null;
    this.renew("memoryx", [this.points.length, this.isTime, !!wafer], () => {
      const traffic = wafer && wafer.sent_bytes ? [facts([
        ["Weights to the wafer, per step", bytes(wafer.sent_bytes)],
        ["Gradients from the wafer, per step", bytes(wafer.received_bytes)]]),
      make("p", { class: "note" }, "bytes as planned by the newest compile")] : [];
      return [...traffic, lineChart("Time of a step, ms", stepTimes(this.points, this.isTime),
        { isTime: this.isTime })];
    });
  }

  performance() {
    const found = this.detail.performance;
    document.querySelector("#performance").hidden = !found;
    return found ? [facts([
      ["Samples", count(found.total_samples)], ["Training", duration(found.total_time)],
      ["Samples/s", rate(found.samples_per_sec)],
      ["Estimate for the CS systems, samples/s", rate(found.est_samples_per_sec)],
      ["CS systems", found.num_csx], ["Compile", duration(found.compile_time)],
      ["Loading the program", duration(found.programming_time)],
      ["Input", found.input.verdict], ["Waits for input", percent(found.input.wait_share)],
      ["Streamers", found.input.streamers], ["Streamers needed", found.input.streamers_needed],
      ["Slowest stage", found.input.slowest_stage]])] : [];
  }

  files() {
    const { files } = this.detail, parts = [];
    const entry = (label, name, kind, target) => {
      const href = source.file(this.id, kind);
      parts.push(make("p", {}, `${label}: `, href
        ? make("a", { href, target, rel: "noopener" }, name) : name));
    };
    if (files.compile_report)
      entry("Compile report", files.compile_report, "compile_report", "_blank");
    for (const trace of files.traces)
      entry("Trace, for ui.perfetto.dev", trace, trace, null);
    if (files.tensorboard) parts.push(make("p", {}, "TensorBoard: ", make("code", {}, files.tensorboard)));
    return parts.length ? parts : [make("p", { class: "note" }, "none yet")];
  }
}

const CHECKPOINT_COLUMNS = [
  { title: "Step", value: (line) => line.step, text: (line) => count(line.step), number: true },
  { title: "Name", value: (line) => line.name },
  { title: "Size", value: (line) => line.nbytes, text: (line) => bytes(line.nbytes), number: true },
  { title: "Written", value: (line) => line.written_s, text: (line) => moment(line.written_s * 1000) },
  { title: "Index", value: (line) => line.place },
  { title: "Problem", value: (line) => line.problem, state: (line) => line.problem ? "failed" : "" },
];
const LEDGER_COLUMNS = [
  { title: "Cause", value: (row) => row.row, text: (row) => rowTitle(row.row) },
  { title: "Time", value: (row) => row.seconds, text: (row) => duration(row.seconds), number: true },
  { title: "Share", value: (row) => row.share, text: (row) => percent(row.share), number: true },
  { title: "Speed-up", value: (row) => row.at_most, number: true,
    text: (row) => isNumber(row.at_most) ? `up to ${row.at_most.toFixed(2)}x` : "" },
];

// Logs of a job's tasks, searched by the server; its newest 4 MB.
class LogPanel {
  constructor(run) {
    this.run = run; this.names = []; this.chosen = null;
    this.task = make("select", { id: "log-task",
      onchange: () => { this.chosen = this.task.value; this.load(); } });
    this.search = make("input", { id: "log-search", type: "search", onchange: () => this.load() });
    this.count = make("span", { class: "note" });
    this.text = make("pre", { class: "log", tabindex: 0 });
    this.empty = make("p", { class: "note" }, "a folder has no logs: they are in its job's folder");
    this.bar = make("div", { class: "bar", hidden: true }, make("label", {}, "Task ", this.task),
      make("label", {}, "Search ", this.search),
      make("button", { onclick: () => this.load() }, "Reload"), this.count);
    this.element = make("div", {}, this.bar, this.empty, this.text);
  }

  offer(names, tasks) {
    this.bar.hidden = this.text.hidden = !names.length;
    this.empty.hidden = !!names.length;
    if (names.join() === this.names.join()) return;
    const chosen = this.chosen ?? names.find((name) => /^rank-0+$/.test(name));  // the chief's
    this.names = names;
    const titles = new Map(tasks.map((task) => [task.log, `${task.name} (${task.log})`]));
    this.task.replaceChildren(...names.map((name) =>
      make("option", { value: name, selected: name === chosen }, titles.get(name) ?? name)));
    this.load();
  }

  async load() {
    if (!this.task.value) return;
    try {
      const found = await source.log(this.run, this.task.value, this.search.value);
      write(this.text, found.lines.join("\n"));
      write(this.count, found.found > found.lines.length
        ? `newest ${count(found.lines.length)} of ${counted(found.found, "line")}` : counted(found.found, "line"));
    } catch (error) {
      write(this.count, error.message);
    }
  }
}
