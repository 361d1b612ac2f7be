// Light, dark, or what the system has. Runs before the page is drawn, so that it does not flash.
(() => {
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const SIGNS = { auto: "◐", light: "☀", dark: "☾" };
  const KEY = "stepwire-theme";
  let theme = localStorage.getItem(KEY) in NEXT ? localStorage.getItem(KEY) : "auto";

  function show() {
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button === null) return;
    button.textContent = SIGNS[theme];
    button.setAttribute("aria-label", `Theme: ${theme}`);
    button.title = `Theme: ${theme}`;
  }

  show();
  document.addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      theme = NEXT[theme];
      localStorage.setItem(KEY, theme);
      show();
    });
  });
})();
