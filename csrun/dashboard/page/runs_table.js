// The table of runs: sorted, filtered, selected.

const selected = new Set();

function runAddress(id) { return `#run/${id}`; }

function checkbox(row) {
  return make("input", { type: "checkbox", "aria-label": `select ${row.name}`,
    onchange: (event) => {
      if (event.target.checked) selected.add(row.id); else selected.delete(row.id);
      showSelection();
    } });
}

const elapsed = (row) => isNumber(row.elapsed_s) ? row.elapsed_s
  : isLive(row.state) && row.begun && source.isLive ? (Date.now() - new Date(row.begun)) / 1000 : null;

// A path as seen from the dashboard's folder.
function fromFolder(path) {
  const top = `${knownRuns.folder}/`;
  return path && path.startsWith(top) ? path.slice(top.length) : path;
}

const RUN_COLUMNS = [
  { title: "", node: checkbox, style: "select" },
  { title: "Run", value: (row) => row.name,
    node: (row) => make("a", { href: runAddress(row.id), title: row.name.slice(0, 500) }, row.name) },
  { title: "Job", value: (row) => row.job_id, number: true },
  { title: "State", value: (row) => row.state, state: (row) => stateClass(row.state) },
  { title: "Started", value: (row) => row.begun, text: (row) => moment(row.begun), extra: "spare" },
  { title: "Time", value: elapsed, text: (row) => clock(elapsed(row)), number: true },
  { title: "Step", value: (row) => row.step, text: (row) => count(row.step), number: true },
  { title: "Loss", value: (row) => row.loss, text: (row) => short(row.loss), number: true },
  { title: "Rate, samples/s", value: (row) => row.rate, text: (row) => rate(row.rate), number: true },
  { title: "Reason", value: (row) => row.why, extra: "reason" },
  { title: "model_dir", value: (row) => fromFolder(row.model_dir) },
  { title: "User", value: (row) => row.user, extra: "user" },
];

const runsTable = new SortedTable(RUN_COLUMNS, (row) => row.id, "Started", true);
let knownRuns = { rows: [], folder: "", is_cut: false, problem: "" };

function matches(row, words) {
  const text = [row.name, row.job_id, row.state, row.user, row.model_dir, row.why]
    .filter(isNumber).join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function showRuns(found = knownRuns) {
  knownRuns = found;
  const words = document.querySelector("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = found.rows.filter((row) => matches(row, words));
  runsTable.show(rows);
  const users = new Set(found.rows.map((row) => row.user).filter(Boolean));
  document.querySelector("#table").classList.toggle("one-user", users.size < 2);
  write(document.querySelector("#count"),
    rows.length === found.rows.length ? counted(rows.length, "run")
      : `${count(rows.length)} of ${counted(found.rows.length, "run")}`);
  const isEmpty = found.folder && !found.rows.length && !found.problem;
  const notes = [found.problem, isEmpty
    ? `no jobs, and no model_dirs below ${found.folder}: start a run, or name another folder` : "",
  found.is_cut
    ? `${found.folder} has too many folders: not all were searched; name a folder below it` : ""];
  write(document.querySelector("#notice"), notes.filter(Boolean).join("; "));
}

function showSelection() {
  document.querySelector("#compare").disabled = selected.size < 2;
}
