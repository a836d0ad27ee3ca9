"use strict";

// The trials: sorted by a click on a heading, best or least first, and filtered by words that must all hold.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], rows = [...body.rows];
  const key = (cell) => {
    const text = cell.dataset.value ?? cell.textContent.trim(), number = Number(text);
    return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const before = head.getAttribute("aria-sort");
    const descending = before === "none" ? "largestFirst" in head.dataset : before === "ascending";
    heads.forEach((other) => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const keyed = [...body.rows].map((row) => [key(row.cells[column]), row]);
    keyed.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null)  // empty cells last, either way
      : descending ? compare(b, a) : compare(a, b));
    body.append(...keyed.map(([, row]) => row));
  }));

  const ascii = (text) => text.toLowerCase().replaceAll("≤", "<=").replaceAll("≥", ">=").replaceAll("≠", "!=")
    .replaceAll("×", "x");
  const plain = (text) => ascii(text).replace(/\s/g, "");  // 32 × 32 is found by 32x32, ε ≤ 3 by ε<=3
  const columns = new Map();  // name -> columns that have it
  heads.forEach((head, column) => {
    for (const name of new Set([plain(head.textContent), ...head.dataset.names.toLowerCase().split(" ")])) {
      if (name) columns.set(name, [...(columns.get(name) ?? []), column]);
    }
  });
  const orders = { "<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b };
  const words = new Map(rows.map((row) => [row, new Set([...row.cells].filter((cell) => !cell.hidden).flatMap(
    (cell) => [plain(cell.textContent), ...cell.textContent.toLowerCase().split(/[\s,()]+/)]))]));
  const shown = new Set([...words.values()].flatMap((found) => [...found]));
  const numeric = (column) => heads[column].classList.contains("n");
  const number = (cell) => Number(cell.textContent.replaceAll(",", "").trim() || NaN);  // as it is shown
  const equals = (cell, value, column) => plain(cell.textContent) === value
    || numeric(column) && number(cell) === Number(value);
  const parse = (word) => {  // a test of a row, or what is wrong with the word
    const [, name, sign, value] = word.match(/^([^=<>!]*)(!=|<=|>=|=|<|>)(.*)$/) ?? [];
    if (sign === undefined || shown.has(word)) return (row) => words.get(row).has(plain(word));
    const named = columns.get(name), wanted = Number(value.replaceAll(",", ""));
    if (!named) return `No column is named ${name || "so"}.`;
    if (value === "") return `${name}${sign} needs a value.`;
    if (sign === "=" || sign === "!=") {
      return (row) => named.some((c) => equals(row.cells[c], value, c)) === (sign === "=");
    }
    if (!named.every(numeric)) return `${name} is no number: use = or !=.`;
    if (Number.isNaN(wanted)) return `${name}${sign} needs a number, not ${value}.`;
    return (row) => named.some((c) => orders[sign](number(row.cells[c]), wanted));  // NaN holds in none
  };
  const filter = document.getElementById("filter");
  const show = () => {
    const text = ascii(filter.value).replace(/\s*(!=|<=|>=|==?|<|>)\s*/g, (_, sign) => sign === "==" ? "=" : sign);
    const parsed = text.split(/\s+/).filter(Boolean).map(parse);
    const tests = parsed.filter((test) => typeof test === "function");
    rows.forEach((row) => { row.hidden = !tests.every((test) => test(row)); });
    document.getElementById("count").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} trials`;
    document.getElementById("unknown").textContent = parsed.filter((test) => typeof test === "string").join(" ");
  };
  filter.addEventListener("input", show);
  show();  // a browser may keep the text of a page that is loaded again
}

// Figures: a legend that hides curves, and the values of the marker that is nearest to the pointer.
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";
tip.hidden = true;
for (const figure of document.querySelectorAll("figure")) {
  const drawing = figure.querySelector(".drawing"), legend = figure.querySelector(".legend");
  if (legend) legend.hidden = false;
  for (const chip of figure.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => {
      const off = chip.getAttribute("aria-pressed") === "true";
      chip.setAttribute("aria-pressed", String(!off));
      for (const group of drawing.querySelectorAll("[data-algorithm]")) {
        if (group.dataset.algorithm === chip.value) group.classList.toggle("off", off);
      }
    });
  }
  const marks = [...drawing.querySelectorAll("use > title")].map((title) => {
    const mark = title.parentElement;
    title.remove();  // else the browser shows it as well
    return [mark, title.textContent];
  });
  const point = ({ clientX, clientY }) => {
    let nearest = 24, text = "";  // pixels
    for (const [mark, said] of marks) {
      if (mark.closest(".off")) continue;
      const box = mark.getBoundingClientRect();
      const distance = Math.hypot(box.x + box.width / 2 - clientX, box.y + box.height / 2 - clientY);
      if (distance < nearest) [nearest, text] = [distance, said];
    }
    tip.hidden = !text;
    tip.textContent = text;
    tip.style.left = `${Math.max(4, Math.min(clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${clientY > tip.offsetHeight + 20 ? clientY - tip.offsetHeight - 12 : clientY + 18}px`;
  };
  drawing.addEventListener("pointermove", point);
  drawing.addEventListener("pointerdown", point);
  drawing.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") tip.hidden = true; });
}
addEventListener("scroll", () => { tip.hidden = true; }, true);

// A link to what is folded opens it, and so does printing.
const reveal = () => {
  for (let fold = document.getElementById(location.hash.slice(1))?.querySelector(".fold"); fold;
    fold = fold.parentElement.closest("details")) fold.open = true;
};
addEventListener("hashchange", reveal);
reveal();
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((details) => { details.open = true; });
});
addEventListener("afterprint", () => closed.forEach((details) => { details.open = false; }));
