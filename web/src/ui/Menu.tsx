import { useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon, type IconName } from "./icons";

export interface MenuEntry {
  text: string;
  icon?: IconName;
  danger?: boolean;
  disabledBecause?: string | null | undefined;
  onChoose?: () => void;
  href?: string;
}

/** A button with more actions. Arrow keys move, Escape closes and returns the focus. */
export function Menu({ label, entries, icon = "more" }: { label: string; entries: readonly MenuEntry[]; icon?: IconName }) {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const id = useId();
  const items = (): HTMLElement[] => [...(box.current?.querySelectorAll<HTMLElement>('[role="menuitem"]') ?? [])];

  useLayoutEffect(() => {
    if (!open) return;
    items()[0]?.focus();
    const outside = (event: MouseEvent): void => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("mousedown", outside);
    return () => document.removeEventListener("mousedown", outside);
  }, [open]);

  const close = (): void => {
    setOpen(false);
    button.current?.focus();
  };
  const onKey = (event: KeyboardEvent): void => {
    const all = items();
    const at = all.indexOf(document.activeElement as HTMLElement);
    const to: Record<string, number> = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 };
    if (event.key === "Escape") close();
    else if (event.key in to) all[((to[event.key] ?? 0) + all.length) % all.length]?.focus();
    else if (event.key === "Tab") {
      setOpen(false);
      return;
    } else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="menu" ref={box}>
      <button
        ref={button} type="button" class="button quiet icon-button" aria-label={label} data-tip={open ? undefined : label}
        aria-haspopup="menu" aria-expanded={open} aria-controls={open ? id : undefined} onClick={() => setOpen(!open)}
      >
        <Icon name={icon} />
      </button>
      {open && (
        <div class="menu-list" id={id} role="menu" aria-label={label} onKeyDown={onKey}>
          {entries.map((entry) => {
            const inside = <>{entry.icon && <Icon name={entry.icon} />}<span class="grow">{entry.text}</span></>;
            if (entry.href) return <a key={entry.text} role="menuitem" tabIndex={-1} href={entry.href} onClick={() => setOpen(false)}>{inside}</a>;
            return (
              <button
                key={entry.text} type="button" role="menuitem" tabIndex={-1} class={entry.danger ? "danger-text" : ""}
                aria-disabled={!!entry.disabledBecause || undefined} data-tip={entry.disabledBecause || undefined}
                onClick={() => {
                  if (entry.disabledBecause) return;
                  close();
                  entry.onChoose?.();
                }}
              >
                {inside}
              </button>
            );
          })}
        </div>
      )}
    </div>
  );
}
