"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");

  // Light and dark: the system's choice until the button is pressed.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const theme = document.getElementById("theme");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const name = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
  };
  try {
    const kept = localStorage.getItem("cpembed-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* Files may have no storage. */ }
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("cpembed-theme", root.dataset.theme);
    } catch { /* As above. */ }
    name();
  });
  system.addEventListener("change", name);
  name();
})();

// The panel beside the page: shows a copy of a card, `prefix` and a number, and marks what it is of.
const cardPanel = (prefix, mark) => {
  const panel = document.getElementById("details");
  let opener = null;
  const choose = (number, from) => {
    const card = document.getElementById(`${prefix}-${number}`);
    if (!card) return false;
    opener = from ?? opener;
    const copy = card.cloneNode(true);
    copy.removeAttribute("id");
    panel.querySelector(".body").replaceChildren(copy);
    panel.classList.add("open");
    panel.scrollTop = 0;
    mark(number);
    return true;
  };
  const isOpen = () => panel.classList.contains("open");
  const close = () => {
    panel.classList.remove("open");
    mark(null);
    opener?.focus({ preventScroll: true });
    opener = null;
  };
  panel.querySelector(".close").addEventListener("click", close);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && isOpen()) close();
  });
  return { choose, isOpen };
};
