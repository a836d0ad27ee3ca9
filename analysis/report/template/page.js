"use strict";
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const cell = row.cells[column], text = cell.dataset.value ?? cell.textContent.trim();
    const number = Number(text);
    return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const descending = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null)  // empty cells last, either way
      : descending ? compare(b, a) : compare(a, b));
    body.append(...rows.map(([, row]) => row));
  }));
  const filter = document.getElementById("filter"), count = document.getElementById("count");
  const plain = (cell) => cell.textContent.replace(/\s/g, "").toLowerCase();  // so that σ=0.1 finds σ = 0.1
  const texts = new Map([...body.rows].map((row) => [row, [...row.cells].map(plain).join(" ")]));
  const show = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const [row, text] of texts) {
      row.hidden = !words.every((word) => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = `${shown} of ${texts.size}`;
  };
  filter.addEventListener("input", show);
  show();  // a browser may keep the text of a page that is loaded again
}
for (const button of document.querySelectorAll("button[data-svg]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const svg = new XMLSerializer().serializeToString(document.getElementById(`figure-${button.dataset.svg}`));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
    link.download = `${button.dataset.svg}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((details) => { details.open = true; });
});
addEventListener("afterprint", () => closed.forEach((details) => { details.open = false; }));
