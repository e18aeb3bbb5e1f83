"use strict";
/* Light or dark theme: the system's preference, until the user presses the button. */
const Theme = (() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const preference = window.matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];
  let chosen = null;

  function remembered() {
    try { return window.localStorage.getItem("wayfare-theme"); } catch { return null; }
  }
  function current() { return chosen ?? (preference.matches ? "dark" : "light"); }
  function apply(theme) {
    root.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(theme === "dark"));
    listeners.forEach((listen) => listen());
  }

  chosen = ["dark", "light"].includes(remembered()) ? remembered() : null;
  root.dataset.theme = current();
  button.addEventListener("click", () => {
    chosen = current() === "dark" ? "light" : "dark";
    try { window.localStorage.setItem("wayfare-theme", chosen); } catch { /* a page from a file may have no storage */ }
    apply(chosen);
  });
  preference.addEventListener("change", () => apply(current()));
  // Print with the light theme.
  window.addEventListener("beforeprint", () => apply("light"));
  window.addEventListener("afterprint", () => apply(current()));
  apply(current());

  return {
    isDark: () => root.dataset.theme === "dark",
    colour: (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim(),
    onChange: (listen) => listeners.push(listen),
  };
})();

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const text = button.nextElementSibling.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      // Without permission, select the text so that the user can copy it.
      window.getSelection().selectAllChildren(button.nextElementSibling);
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
