"use strict";
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const marks = all("a.point");
  const rows = all("#front tbody tr");
  const hover = document.getElementById("hover");

  const mark = (number) => {
    for (const item of [...marks, ...rows]) {
      item.classList.toggle("chosen", item.dataset.point === number);
    }
  };
  const { choose } = cardPanel("point", mark);
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
