// Which view is shown, by the address's fragment: #runs, #run/ID or #compare/ID,ID.

let stop = () => {};

const listener = (view) => ({
  table: (found) => showRuns(found),
  run: (message) => view && view.receive(message),
  status: (text, lost = false) => {
    const status = document.querySelector("#status");
    write(status, text);
    status.className = lost ? "lost" : "";
  },
});

function open() {
  stop();
  const [kind, argument = ""] = location.hash.slice(1).split("/");
  const ids = argument.split(",").filter(Boolean);
  const name = kind === "run" && ids.length ? "run" : kind === "compare" && ids.length > 1 ? "comparison" : "runs";
  for (const main of document.querySelectorAll("main")) {
    main.hidden = main.id !== name;
    if (main.id !== "runs") main.replaceChildren();
  }
  document.title = "csrun dashboard";
  const root = document.querySelector(`#${name}`);
  const view = name === "run" ? new RunView(root, ids[0]) : null;
  const comparison = name === "comparison" ? new ComparisonView(root, ids) : null;
  const closed = source.watch(view ? ids[0] : "", listener(view));
  stop = () => { closed(); if (comparison) comparison.close(); };
}

document.querySelector("#table").append(runsTable.element);
document.querySelector("#filter").addEventListener("input", () => showRuns());
document.querySelector("#compare").addEventListener("click", () => {
  location.hash = `#compare/${[...selected].join(",")}`;
});
if (source.isLive) setInterval(() => { if (!document.querySelector("#runs").hidden) showRuns(); }, 5000);
window.addEventListener("hashchange", open);
NARROW.addEventListener("change", open);  // charts are drawn for a width
open();
