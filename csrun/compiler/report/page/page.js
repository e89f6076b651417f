"use strict";

// A head of the layers' table sorts by its column, and the other way round when it is used again.
const table = document.querySelector(".sortable");
const heads = [...table.tHead.rows[0].cells];

function sortBy(head) {
  const sign = head.ariaSort === "ascending" ? -1 : 1;
  const number = head.classList.contains("number");
  const value = (row) => row.cells[head.cellIndex].dataset.value;
  const difference = (a, b) =>
    number ? value(a) - value(b) : value(a).localeCompare(value(b), "en", { numeric: true });
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort((a, b) => sign * difference(a, b)));
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
