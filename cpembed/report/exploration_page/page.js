"use strict";
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const marks = all("a.point");
  const rows = all("#front tbody tr");
  const hover = document.getElementById("hover");
  const panel = document.getElementById("details");
  const body = panel.querySelector(".body");
  let opener = null;

  const mark = (number) => {
    for (const item of [...marks, ...rows]) {
      item.classList.toggle("chosen", item.dataset.point === number);
    }
  };
  const choose = (number, from) => {
    const card = document.getElementById(`point-${number}`);
    if (!card) return false;
    opener = from ?? opener;
    const copy = card.cloneNode(true);
    copy.removeAttribute("id");
    body.replaceChildren(copy);
    panel.classList.add("open");
    panel.scrollTop = 0;
    mark(number);
    return true;
  };
  const close = () => {
    panel.classList.remove("open");
    mark(null);
    opener?.focus({ preventScroll: true });
    opener = null;
  };
  panel.querySelector(".close").addEventListener("click", close);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && panel.classList.contains("open")) close();
  });
  for (const link of all("a[data-point]")) {
    link.addEventListener("click", (event) => {
      if (choose(link.dataset.point, link)) event.preventDefault();
    });
  }
  // The line above the plots says what is below the pointer, or has the focus.
  for (const item of marks) {
    const tell = () => {
      hover.textContent = item.getAttribute("aria-label");
    };
    item.addEventListener("pointerenter", tell);
    item.addEventListener("focus", tell);
  }
  const wanted = /^#point-(\d+)$/.exec(location.hash);
  if (wanted) choose(wanted[1], null);
})();
