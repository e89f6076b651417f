"use strict";

// The row of a block shows the rows of its layers, which come behind it, and hides them again.
for (const button of document.querySelectorAll(".fold"))
  button.addEventListener("click", () => {
    const rows = button.closest("tbody").nextElementSibling;
    rows.hidden = !rows.hidden;
    button.ariaExpanded = String(!rows.hidden);
  });

// A head of the layers' table sorts by its column, and the other way round when it is used again.
// The order that was there at first is that of the first column: it has the blocks.
const table = document.querySelector(".sortable");
const heads = [...table.tHead.rows[0].cells];
const bodies = [...table.tBodies];
const rowsOf = bodies.map((body) => [...body.rows]);
const layers = rowsOf.filter((_, index) => !bodies[index].matches(".block")).flat();
const unfolded = document.createElement("tbody");

function sortBy(head) {
  const sign = head.ariaSort === "ascending" ? -1 : 1;
  const number = head.classList.contains("number");
  const value = (row) => row.cells[head.cellIndex].dataset.value;
  const difference = (a, b) =>
    number ? value(a) - value(b) : value(a).localeCompare(value(b), "en", { numeric: true });
  bodies.forEach((body) => body.remove());
  if (head === heads[0] && sign > 0) {
    unfolded.remove();
    bodies.forEach((body, index) => body.append(...rowsOf[index]));
    table.append(...bodies);
  } else {
    unfolded.append(...[...layers].sort((a, b) => sign * difference(a, b)));
    table.append(unfolded);
  }
  heads.forEach((other) => other.removeAttribute("aria-sort"));
  head.ariaSort = sign > 0 ? "ascending" : "descending";
}

heads.forEach((head) => head.firstElementChild.addEventListener("click", () => sortBy(head)));

// What is pointed at, or has the focus, lights up in the floor plan and in the tables.
const marked = [...document.querySelectorAll("[data-layers]")];
const pointed = document.querySelector("#pointed");
const layersOf = (element) => element.dataset.layers.split(" ");

function light(layers) {
  for (const element of marked)
    element.classList.toggle("lit", layersOf(element).some((index) => layers.includes(index)));
}

for (const element of marked) {
  const name = element.matches(".place") ? () => { pointed.textContent = element.ariaLabel; } : null;
  for (const event of ["pointerenter", "focus"])
    element.addEventListener(event, () => { light(layersOf(element)); name?.(); });
  for (const event of ["pointerleave", "blur"])
    element.addEventListener(event, () => light([]));
}
