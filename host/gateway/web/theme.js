// SPDX-License-Identifier: Apache-2.0
// The theme of all pages: that of the system, light, or dark.

const names = { auto: "System theme", light: "Light theme", dark: "Dark theme" };
const system = matchMedia("(prefers-color-scheme: dark)");

function chosen() {
  const name = localStorage.getItem("troupe.theme");
  return name in names ? name : "auto";
}

function apply(button) {
  const name = chosen();
  document.documentElement.dataset.theme = name === "auto" ? (system.matches ? "dark" : "light") : name;
  if (button) {
    button.textContent = `${{ auto: "◐", light: "☀", dark: "☾" }[name]} ${names[name]}`;
    button.setAttribute("aria-label", `${names[name]}: change`);
  }
}

// useTheme applies the theme and lets a button change it.
export function useTheme(button) {
  apply(button);
  system.addEventListener("change", () => apply(button));
  button?.addEventListener("click", () => {
    const order = Object.keys(names);
    localStorage.setItem("troupe.theme", order[(order.indexOf(chosen()) + 1) % order.length]);
    apply(button);
  });
}
