import { useEffect, useState } from "preact/hooks";

/** Changes whenever the colours of the page may have changed: the reader chose a theme, or the system did. */
export function useThemeVersion(): number {
  const [version, setVersion] = useState(0);
  useEffect(() => {
    const changed = () => setVersion((n) => n + 1);
    const watcher = new MutationObserver(changed);
    watcher.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", changed);
    return () => {
      watcher.disconnect();
      system.removeEventListener("change", changed);
    };
  }, []);
  return version;
}

/** The colours of tokens as the canvas needs them: resolved where `host` stands, however the token is written. */
export function resolveColors(host: HTMLElement, tokens: string[]): Record<string, string> {
  const probe = document.createElement("span");
  host.appendChild(probe);
  const colors: Record<string, string> = {};
  for (const token of tokens) {
    probe.style.color = `var(--${token})`;
    colors[token] = getComputedStyle(probe).color;
  }
  probe.remove();
  return colors;
}

/** The width of an element, followed as it changes. 0 until it is laid out. */
export function useWidth(ref: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = ref.current;
    if (!element) return;
    const watcher = new ResizeObserver((entries) => {
      for (const entry of entries) setWidth(Math.floor(entry.contentRect.width));
    });
    watcher.observe(element);
    setWidth(Math.floor(element.getBoundingClientRect().width));
    return () => watcher.disconnect();
  }, []);
  return width;
}
