"use strict";
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];

  // One operator is chosen: its details are shown, its node, row and edges are marked.
  const nodes = all("a.node");
  const rows = all("#layers tbody tr");
  const edges = all("svg .edges > path");

  const mark = (number) => {
    for (const [index, node] of nodes.entries()) node.classList.toggle("chosen", index === number);
    for (const row of rows) row.classList.toggle("chosen", Number(row.dataset.op) === number);
    for (const edge of edges) {
      const ends = [Number(edge.dataset.from), Number(edge.dataset.to)];
      edge.classList.toggle("lit", ends.includes(number));
    }
  };
  const { choose: show, isOpen } = cardPanel("op", mark);
  const choose = (number, from) => {
    if (show(number, from)) current(number);
  };
  for (const link of all("a[data-op]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      choose(Number(link.dataset.op), link);
    });
  }

  // One node takes part in the order of tabs; arrows go along edges and within a layer.
  const current = (number) => {
    for (const [index, node] of nodes.entries()) node.tabIndex = index === number ? 0 : -1;
  };
  const place = nodes.map((node) => {
    const { e, f } = node.transform.baseVal.consolidate().matrix;
    return { x: e, y: f };
  });
  const nearest = (from, found) =>
    found.sort((a, b) => Math.abs(place[a].x - place[from].x) - Math.abs(place[b].x - place[from].x))[0];
  const towards = (number, key) => {
    const here = place[number];
    if (key === "ArrowDown" || key === "ArrowUp") {
      const down = key === "ArrowDown";
      const along = edges
        .filter((edge) => Number(down ? edge.dataset.from : edge.dataset.to) === number)
        .map((edge) => Number(down ? edge.dataset.to : edge.dataset.from));
      return nearest(number, along);
    }
    const right = key === "ArrowRight";
    const beside = [...place.keys()].filter(
      (k) => place[k].y === here.y && (right ? place[k].x > here.x : place[k].x < here.x),
    );
    return nearest(number, beside);
  };
  for (const [number, node] of nodes.entries()) {
    node.addEventListener("keydown", (event) => {
      if (event.key === " ") {
        event.preventDefault();
        choose(number, node);
        return;
      }
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      const next = towards(number, event.key);
      if (next === undefined) return;
      current(next);
      nodes[next].focus();
      if (isOpen()) choose(next, nodes[next]);
    });
  }
  current(0);

  // Columns of the table sort it, numbers with the largest first.
  const table = document.querySelector("#layers");
  const heads = [...table.tHead.rows[0].cells];
  const said = document.getElementById("said");
  const value = (row, column, numeric) => {
    const text = row.cells[column].dataset.value;
    if (!numeric) return text;
    return text === "" ? null : Number(text);
  };
  const sort = (column) => {
    const head = heads[column];
    const numeric = head.dataset.sort === "number";
    const first = numeric && column > 0 ? "descending" : "ascending";
    const before = head.getAttribute("aria-sort");
    const order = before === null ? first : before === "ascending" ? "descending" : "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    rows.sort((a, b) => {
      const [x, y] = [value(a, column, numeric), value(b, column, numeric)];
      // What is not known comes last either way.
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (numeric ? x - y : x.localeCompare(y));
    });
    table.tBodies[0].append(...rows);
    said.textContent = `sorted by ${head.textContent}, ${order}`;
  };
  for (const [column, head] of heads.entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => sort(column));
  }

  // The picture at its own size, or as wide as the page.
  const picture = document.getElementById("picture");
  const box = picture.viewBox.baseVal;
  const frame = picture.closest(".scroll");
  let scale = 1;
  const zoom = (to) => {
    const middle = (frame.scrollTop + frame.clientHeight / 2) / scale;
    scale = Math.min(3, Math.max(0.1, to));
    picture.setAttribute("width", String(box.width * scale));
    picture.setAttribute("height", String(box.height * scale));
    frame.scrollTop = middle * scale - frame.clientHeight / 2;
    frame.scrollLeft = (frame.scrollWidth - frame.clientWidth) / 2;
  };
  document.getElementById("fit").addEventListener("click", () => zoom((frame.clientWidth - 4) / box.width));
  document.getElementById("larger").addEventListener("click", () => zoom(scale * 1.25));
  document.getElementById("smaller").addEventListener("click", () => zoom(scale / 1.25));
  frame.scrollLeft = (frame.scrollWidth - frame.clientWidth) / 2;

  const slowest = rows.find((row) => row.classList.contains("slowest"));
  document.getElementById("slowest").addEventListener("click", (event) => {
    if (!slowest) return;
    const number = Number(slowest.dataset.op);
    nodes[number].scrollIntoView({ block: "center", inline: "center" });
    choose(number, event.currentTarget);
  });
  const wanted = /^#op-(\d+)$/.exec(location.hash);
  if (wanted) choose(Number(wanted[1]), null);
})();
