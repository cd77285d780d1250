// SPDX-License-Identifier: Apache-2.0
// Filters above the table of functions: part of the name, category, and what must not be "no".
document.addEventListener("DOMContentLoaded", () => {
  const table = document.querySelector(".functions-table table");
  if (!table) return;
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const rows = [...table.tBodies[0].rows].map((row) => ({
    row,
    texts: [...row.cells].map((cell) => cell.textContent.trim()),
  }));
  const category = heads.indexOf("category");
  const make = (tag, label, options = []) => {
    const element = document.createElement(tag);
    element.setAttribute("aria-label", label);
    for (const text of [label, ...options].slice(tag === "select" ? 0 : 1)) {
      element.append(new Option(text, text === label ? "" : text));
    }
    return element;
  };
  const name = make("input", "part of a name");
  name.placeholder = "part of a name";
  const kind = make("select", "any category", [...new Set(rows.map((r) => r.texts[category]))].sort());
  const target = make("select", "any target", heads.slice(category + 1));
  const count = document.createElement("span");
  const apply = () => {
    const column = heads.indexOf(target.value);
    let shown = 0;
    for (const { row, texts } of rows) {
      const fits =
        texts[0].includes(name.value.trim()) &&
        (!kind.value || texts[category] === kind.value) &&
        (column < 0 || !["no", "", "its parts"].includes(texts[column]));
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = `${shown} functions`;
  };
  const bar = document.createElement("div");
  bar.className = "functions-filter";
  bar.append(name, kind, target, count);
  for (const element of [name, kind, target]) element.addEventListener("input", apply);
  table.closest(".functions-table").prepend(bar);
  apply();
});
