import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

interface Shown {
  text: string;
  x: number;
  y: number;
  below: boolean;
}

/** One tooltip for the page: shows `data-tip` of what is hovered or focused, in dialogs too. Escape hides it. */
export function TooltipLayer() {
  const [shown, setShown] = useState<Shown | null>(null);
  const box = useRef<HTMLDivElement>(null);
  // A popover is drawn above a modal dialog if it is shown after it.
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || !("showPopover" in element)) return;
    if (element.matches(":popover-open")) element.hidePopover();
    if (shown !== null) element.showPopover();
  }, [shown]);
  useEffect(() => {
    let anchor: Element | null = null;
    const hide = (): void => {
      anchor?.removeAttribute("aria-describedby");
      anchor = null;
      setShown(null);
    };
    const show = (event: Event): void => {
      const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
      if (target === anchor) return;
      hide();
      const text = target?.getAttribute("data-tip");
      if (!target || !text) return;
      anchor = target;
      if (target.getAttribute("aria-label") !== text) target.setAttribute("aria-describedby", "tooltip");
      const box = target.getBoundingClientRect();
      const below = box.top < 60;
      const half = Math.min(160, window.innerWidth / 2 - 8);
      const x = Math.min(Math.max(box.left + box.width / 2, half + 8), window.innerWidth - half - 8);
      setShown({ text, x, y: below ? box.bottom + 6 : box.top - 6, below });
    };
    const key = (event: KeyboardEvent): void => {
      if (event.key === "Escape") hide();
    };
    document.addEventListener("mouseover", show);
    document.addEventListener("focusin", show);
    document.addEventListener("focusout", hide);
    document.addEventListener("keydown", key);
    document.addEventListener("scroll", hide, true);
    document.addEventListener("mousedown", hide);
    return () => {
      document.removeEventListener("mouseover", show);
      document.removeEventListener("focusin", show);
      document.removeEventListener("focusout", hide);
      document.removeEventListener("keydown", key);
      document.removeEventListener("scroll", hide, true);
      document.removeEventListener("mousedown", hide);
    };
  }, []);
  return (
    <div id="tooltip" role="tooltip" ref={box} popover="manual" class={`tooltip ${shown?.below ? "below" : ""}`} hidden={shown === null} style={shown ? { left: `${shown.x}px`, top: `${shown.y}px` } : undefined}>
      {shown?.text}
    </div>
  );
}
