// Sets the theme before the first paint: the reader's choice, else the system's. It is a file of its own because the
// page allows no inline script.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    let theme = null;
    try {
      theme = localStorage.getItem("shoal.theme");
    } catch {
      // Storage may be forbidden; the system's theme is used then.
    }
    if (theme !== "light" && theme !== "dark") theme = dark.matches ? "dark" : "light";
    document.documentElement.dataset.theme = theme;
  };
  dark.addEventListener("change", apply);
  addEventListener("shoal-theme", apply);
  apply();
})();
