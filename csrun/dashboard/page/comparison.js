// Selected runs: their curves in one chart, their parameters in one table.

const REFRESH_MS = 5000;

class ComparisonView {
  constructor(root, ids) {
    this.root = root; this.ids = ids; this.runs = []; this.settings = []; this.isTime = false;
    this.tag = "train/loss_scale"; this.isClosed = false;
    root.replaceChildren(make("p", { class: "note" }, "loading"));
    this.open();
  }

  close() { this.isClosed = true; clearInterval(this.timer); }

  async open() {
    try {
      [this.runs, this.settings] = await Promise.all([
        Promise.all(this.ids.map((id) => source.run(id))),
        Promise.all(this.ids.map((id) => source.settings(id)))]);
    } catch (error) {
      this.root.replaceChildren(make("p", { class: "failed" }, error.message));
      return;
    }
    if (this.isClosed) return;
    this.build();
    if (source.isLive) this.timer = setInterval(() => this.refresh(), REFRESH_MS);
  }

  async refresh() {
    if (!this.runs.some((run) => isLive(run.detail.state))) return;
    this.runs = await Promise.all(this.runs.map((run, at) =>
      isLive(run.detail.state) ? source.run(this.ids[at]) : run));
    if (!this.isClosed) this.show();
  }

  names() {
    const names = this.runs.map(({ detail }) => runTitle(detail).slice(0, 200));
    return names.map((name, at) => names.indexOf(name) === names.lastIndexOf(name) ? name
      : `${name} (${this.ids[at]})`);
  }

  build() {
    const horizontal = make("select", { id: "compared-axis",
      onchange: (event) => { this.isTime = event.target.value === "time"; this.show(); } },
    make("option", { value: "step" }, "step"), make("option", { value: "time" }, "time"));
    this.tags = [];
    this.choice = make("select", { id: "compared-tag",
      onchange: (event) => { this.tag = this.tags[event.target.value]; this.show(); } });
    const everything = make("input", { type: "checkbox", id: "everything",
      onchange: (event) => this.showSettings(event.target.checked) });
    this.charts = ["Loss", "Rate", ""].map(() => make("div"));
    this.table = make("div", { class: "wide", id: "settings" });
    this.root.replaceChildren(make("h2", {}, counted(this.runs.length, "run")),
      make("div", { class: "bar" }, make("label", {}, "Horizontal axis ", horizontal)),
      make("div", { class: "panels" },
        make("section", {}, make("h3", {}, "Loss"), this.charts[0]),
        make("section", {}, make("h3", {}, "Rate, samples/s"), this.charts[1]),
        make("section", { class: "full" }, make("h3", {}, "Other values ", this.choice), this.charts[2]),
        make("section", { class: "full" }, make("h3", {}, "Parameters and identity"),
          make("label", {}, everything, " show equal values, too"), this.table)));
    this.show();
    this.showSettings(false);
  }

  show() {
    const names = this.names();
    const lines = (tag) => this.runs.map((run, at) =>
      ({ name: names[at], points: valuesOf(run.points, tag, this.isTime) }));
    const tags = [...new Set(this.runs.flatMap((run) => tagsOf(run.points)))].sort()
      .filter((tag) => tag !== "loss" && tag !== "local_samples_per_sec");
    this.tags = tags;
    if (!tags.includes(this.tag)) this.tag = tags[0];
    this.choice.replaceChildren(...tags.map((tag, at) =>
      make("option", { value: at, selected: tag === this.tag }, titleOf(tag))));
    const isTime = this.isTime;
    this.charts[0].replaceChildren(lineChart("Loss", lines("loss"), { isTime }));
    this.charts[1].replaceChildren(lineChart("Rate", lines("local_samples_per_sec"), { isTime, text: rate }));
    this.charts[2].replaceChildren(...(tags.length
      ? [lineChart(this.tag, lines(this.tag), { isTime })] : []));
  }

  showSettings(everything) {
    const head = make("tr", {}, make("th", { scope: "col" }, "Key"),
      ...this.names().map((name) => make("th", { scope: "col", title: name }, name.slice(0, 40))));
    const lines = [];
    for (const part of ["parameters", "identity"]) {
      const keys = new Set(this.settings.flatMap((each) => Object.keys(each[part])));
      for (const key of keys) {
        const values = this.settings.map((each) => each[part][key]);
        const differs = values.some((value) => value !== values[0]);
        if (differs || everything)
          lines.push(make("tr", { class: differs ? "lit" : null, "data-key": key },
            make("td", { class: "text", title: key }, key),
            ...values.map((value) => make("td", { class: "value" }, value ?? "(not set)"))));
      }
    }
    this.table.replaceChildren(lines.length
      ? make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines))
      : make("p", { class: "note" }, "all parameters and versions are equal"));
  }
}
