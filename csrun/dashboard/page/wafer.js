// The wafer: the floor plan or the groups of weights, and a step replayed call by call.

class WaferPanel {
  constructor(wafer) {
    this.wafer = wafer; this.at = 0; this.timer = null;
    this.isStreaming = wafer.mode === "WEIGHT_STREAMING";
    this.step = wafer.steps[0] ?? null;
    this.most = Math.max(0, ...wafer.layers.map((layer) => layer.utilization ?? 0));
    this.places = [];
    const calls = wafer.visits.length * wafer.micro_batches;
    this.slider = make("input", { type: "range", id: "call", min: 0, max: Math.max(calls - 1, 0), value: 0,
      "aria-label": "call of the step", oninput: () => this.go(Number(this.slider.value)) });
    this.caption = make("p", { id: "call-caption", "aria-live": "polite" });
    this.spans = make("div");
    this.table = new SortedTable(this.columns(), (layer) => layer.name);
    this.groups = make("p", { class: "note", id: "groups" });
    this.element = make("div", {},
      make("p", { class: "note" }, this.sentence()), this.controls(), this.caption,
      make("div", { class: "plan" },
        make("div", {}, ...this.drawings(), this.groups),
        make("div", { class: "wide" }, this.table.element)),
      this.spans);
    this.go(0);
  }

  sentence() {
    const { wafer } = this;
    const how = this.isStreaming ? "weight streaming: the layers run one after the other on the whole wafer"
      : "layer pipelined: each layer has its own PEs";
    const replay = this.step ? `Steps of ${wafer.trace}, as they ran.`
      : `Planned order, without times (${wafer.problem}).`;
    return `Compile ${wafer.checksum}, ${how}. ${replay}`;
  }

  controls() {
    const { wafer } = this;
    const steps = make("select", { id: "traced-step",
      onchange: (event) => { this.step = wafer.steps[event.target.value]; this.go(this.at); } },
    ...wafer.steps.map((step, index) => make("option", { value: index }, step.step)));
    this.play = make("button", { id: "play", onclick: () => this.toggle() }, "Play");
    return make("div", { class: "bar" },
      ...(wafer.steps.length ? [make("label", {}, "Step ", steps)] : []),
      make("button", { onclick: () => this.go(this.at - 1), "aria-label": "previous call" }, "‹"),
      make("button", { onclick: () => this.go(this.at + 1), "aria-label": "next call" }, "›"),
      this.play, this.slider);
  }

  columns() {
    const group = { title: "Group", value: (layer) => layer.group, number: true };
    return [
      { title: "Layer", value: (layer) => layer.name },
      { title: "Kernel", value: (layer) => layer.kernel },
      ...(this.isStreaming ? [group] : [{ title: "PEs", value: (layer) => layer.pes, text: (layer) => count(layer.pes), number: true }]),
      { title: "Est. utilization", value: (layer) => layer.utilization, number: true,
        text: (layer) => isNumber(layer.utilization) ? `${(100 * layer.utilization).toPrecision(3)} %` : "" },
      { title: "Weights", value: (layer) => layer.weight_bytes, number: true,
        text: (layer) => bytes(layer.weight_bytes) },
      { title: this.isStreaming ? "State" : "Minibatch", text: (layer) => layer.now },
    ];
  }

  drawings() {
    if (this.isStreaming) return [this.wholeFabric()];
    const scale = make("p", { class: "note" }, "Estimated utilization: 0 ",
      make("span", { class: "scale" }), ` ${(100 * this.most).toPrecision(3)} %`);
    return [...this.wafer.plans.map((plan) => this.floorPlan(plan)), scale];
  }

  heat(layer) {
    return (.08 + .72 * (this.most ? (layer.utilization ?? 0) / this.most : 0)).toFixed(3);
  }

  floorPlan(plan) {
    const svg = make("svg", { viewBox: `0 0 ${plan.fabric.width} ${plan.fabric.height}`, role: "img",
      "aria-label": plan.title },
    make("rect", { class: "fabric", width: plan.fabric.width, height: plan.fabric.height }));
    for (const drawn of plan.layers) {
      const { area } = drawn, text = make("text", { class: "minibatch",
        x: area.x + area.width - .4, y: area.y + Math.min(area.height / 2, 1) });
      const place = make("g", { class: "place", "data-layer": drawn.layer },
        make("title", {}, drawn.caption),
        make("rect", { x: area.x, y: area.y, width: area.width, height: area.height,
          "fill-opacity": this.heat(this.wafer.layers[drawn.layer]) }));
      if (drawn.text)
        place.append(make("text", { x: drawn.x, y: drawn.y,
          transform: drawn.is_rotated ? `rotate(-90 ${drawn.x} ${drawn.y})` : null }, drawn.text));
      place.append(text);
      this.places.push({ layer: drawn.layer, place, text });
      svg.append(place);
    }
    return make("figure", {}, make("div", { class: "wide" }, svg));
  }

  wholeFabric() {
    this.onWafer = make("text", { x: 18, y: 11 });
    this.onWaferSize = make("text", { x: 18, y: 13 });
    this.fabric = make("rect", { x: .5, y: .5, width: 35, height: 23 });
    return make("svg", { viewBox: "0 0 36 24", role: "img", "aria-label": "weights on the wafer" },
      make("g", { class: "place" }, this.fabric), this.onWafer, this.onWaferSize);
  }

  toggle() {
    if (this.timer) { clearInterval(this.timer); this.timer = null; }
    else {
      if (this.at >= Number(this.slider.max)) this.go(0);
      this.timer = setInterval(() => {
        if (this.at >= Number(this.slider.max) || !this.element.isConnected) this.toggle();
        else this.go(this.at + 1);
      }, 400);
    }
    write(this.play, this.timer ? "Stop" : "Play");
  }

  go(at) {
    const { wafer } = this;
    if (!wafer.visits.length) return;
    this.at = Math.max(0, Math.min(at, Number(this.slider.max)));
    this.slider.value = this.at;
    const inBatch = this.at % wafer.visits.length, visit = wafer.visits[inBatch];
    const span = this.step ? this.step.visits[this.at] : null;
    const layers = visit.layers.map((index) => wafer.layers[index].name).join(", ") || "no layer";
    const parts = [`Call ${this.at + 1} of ${Number(this.slider.max) + 1}: ${visit.function.replaceAll("_", " ")}`];
    if (wafer.micro_batches > 1) parts.push(`micro-batch ${Math.floor(this.at / wafer.visits.length)}`);
    if (wafer.minibatches > 1) parts.push(`minibatch ${visit.minibatch}`);
    parts.push(layers);
    if (span) parts.push(`${(span.ended_ms - span.began_ms).toFixed(3)} ms, from ${span.began_ms.toFixed(3)} ms`);
    write(this.caption, parts.join("; "));
    if (this.isStreaming) this.showGroups(visit); else this.showFlow(inBatch);
    this.table.show(wafer.layers.map((layer, index) => ({ ...layer, now: this.texts[index] })));
    wafer.layers.forEach((layer, index) => this.table.lines.get(layer.name)
      .classList.toggle("lit", visit.layers.includes(index)));
    this.spans.replaceChildren(...(span ? [spanChart("Spans of the step", this.step.others, span.began_ms, span)] : []));
  }

  // The last minibatch that has entered each layer, and in which direction.
  showFlow(at) {
    const { wafer } = this;
    this.texts = wafer.layers.map(() => "");
    wafer.visits.slice(0, at + 1).forEach((visit) => visit.layers.forEach((layer) => {
      this.texts[layer] = `${visit.minibatch} ${visit.function.split("_")[0]}`;
    }));
    for (const { layer, place, text } of this.places) {
      place.classList.toggle("lit", wafer.visits[at].layers.includes(layer));
      write(text, this.texts[layer].split(" ")[0]);
    }
  }

  showGroups(visit) {
    const { wafer } = this;
    const computing = new Set(visit.layers.map((index) => wafer.layers[index].group));
    const state = (group) => computing.has(group) ? "computing"
      : visit.resident.includes(group) ? "in a slot" : "in MemoryX";
    this.texts = wafer.layers.map((layer) => state(layer.group));
    const names = visit.layers.map((index) => wafer.layers[index].name);
    const used = visit.layers.map((index) => wafer.layers[index]);
    const most = Math.max(0, ...used.map((layer) => layer.utilization ?? 0));
    this.fabric.setAttribute("fill-opacity", this.heat({ utilization: most }));
    write(this.onWafer, names.length > 3 ? `${names[0]} to ${names[names.length - 1]}` : names.join(", "));
    write(this.onWaferSize, [...computing].map((group) => `group ${group}: ${bytes(wafer.groups[group])}`).join(", "));
    write(this.groups, visit.resident.length
      ? `Weights in the slots: ${visit.resident.map((group) => `group ${group}`).join(", ")}` : "");
  }
}
