import { Store } from "../store";

export type Theme = "system" | "light" | "dark";

const NAME = "shoal.theme";

function stored(): Theme {
  try {
    const value = localStorage.getItem(NAME);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system";
  }
}

export const theme = new Store<Theme>(stored());

export function setTheme(next: Theme): void {
  try {
    if (next === "system") localStorage.removeItem(NAME);
    else localStorage.setItem(NAME, next);
  } catch {
    // Storage may be forbidden; then the choice lasts as long as the page.
  }
  theme.set(next);
  window.dispatchEvent(new Event("shoal-theme"));
  if (next !== "system") document.documentElement.dataset.theme = next;
}
