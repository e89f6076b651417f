// Tasks of a job: a table of them now, and charts of their CPU and memory since its begin.

const TASK_COLUMNS = [
  { title: "Task", value: (task) => task.name },
  { title: "Rank", value: (task) => task.rank, number: true },
  { title: "Role", value: (task) => task.role },
  { title: "Node", value: (task) => task.node },
  { title: "State", value: (task) => task.state, state: (task) => stateClass(task.state) },
  { title: "CPU, %", value: (task) => task.cpu_percent, number: true,
    text: (task) => isNumber(task.cpu_percent) ? task.cpu_percent.toFixed(0) : "" },
  { title: "Memory", value: (task) => task.memory_bytes, text: (task) => bytes(task.memory_bytes),
    number: true },
  { title: "", text: (task) => task.is_straggler ? "straggler" : "" },
];
const MOST_LINES = 8;  // of single tasks, each in a colour of its own

class TaskPanel {
  constructor() {
    this.tasks = []; this.usage = []; this.grouping = null;
    this.table = new SortedTable(TASK_COLUMNS, (task) => task.log);
    this.choice = make("select", { id: "task-lines",
      onchange: (event) => { this.grouping = event.target.value; this.showCharts(); } },
    make("option", { value: "task" }, "tasks"),
    make("option", { value: "role" }, "roles of each node"));
    this.cpu = make("div", { id: "task-cpu" });
    this.memory = make("div", { id: "task-memory" });
    this.history = make("div", { id: "task-history" },
      make("div", { class: "bar" }, make("label", {}, "Lines ", this.choice)),
      make("div", { class: "pair" },
        make("div", {}, make("h4", {}, "CPU, % of one CPU"), this.cpu),
        make("div", {}, make("h4", {}, "Memory, MB"), this.memory)));
    this.element = make("div", {}, make("div", { class: "wide" }, this.table.element), this.history);
  }

  // Samples from number `after` on replace those that are known.
  receive(tasks, after, usage) {
    this.table.show(tasks);
    const isNew = usage.length || after < this.usage.length || tasks.length !== this.tasks.length;
    this.tasks = tasks;
    this.usage.splice(after, Infinity, ...usage);
    if (isNew) this.showCharts();
  }

  showCharts() {
    this.history.hidden = !this.usage.length;
    if (this.history.hidden) return;
    this.choice.value = this.grouping ?? (this.tasks.length > MOST_LINES ? "role" : "task");
    const options = { isTime: true, text: rate };
    this.cpu.replaceChildren(lineChart("CPU of tasks", this.lines("cpu_percent", 1), options));
    this.memory.replaceChildren(
      lineChart("Memory of tasks", this.lines("memory_bytes", 1e6), options));
  }

  // Lines of a value, summed over the tasks of each line; in seconds since the first sample.
  lines(value, unit) {
    const names = new Map(this.tasks.map((task) => [task.log,
      this.choice.value === "task" ? this.nameOf(task) : `${task.role} on ${task.node}`]));
    const found = new Map([...names.values()].map((name) => [name, []]));
    for (const { taken_s, loads } of this.usage) {
      const sums = new Map();
      for (const [log, load] of Object.entries(loads))
        if (names.has(log))
          sums.set(names.get(log), (sums.get(names.get(log)) ?? 0) + Number(load[value]) / unit);
      for (const [name, sum] of sums) found.get(name).push([taken_s - this.usage[0].taken_s, sum]);
    }
    return [...found].map(([name, points]) => ({ name, points }));
  }

  // Tasks of a command without roles have one name: the log tells them apart.
  nameOf(task) {
    const isOnly = this.tasks.filter((other) => other.name === task.name).length === 1;
    return isOnly ? task.name : task.log;
  }
}
