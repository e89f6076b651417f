// Where the data comes from: the server that sent this page, or the page itself.

const SAVED = JSON.parse(document.querySelector("#data").textContent);

function address(path, parameters = {}) {
  const url = new URL(path, location.href);
  url.search = "";
  url.searchParams.set("token", new URLSearchParams(location.search).get("token"));
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  return url;
}

async function load(path, parameters) {
  const answer = await fetch(address(path, parameters));
  const found = await answer.json();
  if (found && found.error && path !== "wafer") throw new Error(found.error);
  return found;
}

function savedLog(log, search) {
  const wanted = search.toLowerCase();
  const lines = log.lines.filter((line) => line.toLowerCase().includes(wanted));
  return { ...log, lines, found: search ? lines.length : log.found };
}

const source = SAVED ? {
  isLive: false,
  run: async (id) => SAVED.runs[id],
  settings: async (id) => SAVED.runs[id].settings,
  wafer: async (id) => SAVED.runs[id].wafer,
  log: async (id, task, search) => savedLog(SAVED.runs[id].logs[task], search),
  file: () => null,
  watch(run, listener) {
    listener.table(SAVED.table);
    if (run && SAVED.runs[run]) listener.run({ ...SAVED.runs[run], after: 0, usage_after: 0 });
    listener.status(`saved ${moment(SAVED.taken)}`);
    return () => {};
  },
} : {
  isLive: true,
  run: (id) => load("run", { run: id }),
  settings: (id) => load("settings", { run: id }),
  wafer: (id) => load("wafer", { run: id }),
  log: (id, task, search) => load("log", { run: id, task, search }),
  file: (id, name) => address("file", { run: id, name }).href,
  watch(run, listener) {
    const events = new EventSource(address("events", run ? { run } : {}));
    events.addEventListener("table", (event) => {
      listener.status("live");
      listener.table(JSON.parse(event.data));
    });
    events.addEventListener("run", (event) => {
      listener.status("live");
      listener.run(JSON.parse(event.data));
    });
    events.addEventListener("problem", (event) => listener.status(JSON.parse(event.data), true));
    events.addEventListener("open", () => listener.status("loading"));
    events.addEventListener("error", () => listener.status("connection to csrun dashboard lost", true));
    return () => events.close();
  },
};
