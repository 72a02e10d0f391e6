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
