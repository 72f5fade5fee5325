import type { ComponentChildren } from "preact";
import { Icon, type IconName } from "./icons";

export type ButtonKind = "plain" | "primary" | "danger" | "quiet";

interface ButtonProps {
  children: ComponentChildren;
  kind?: ButtonKind;
  icon?: IconName;
  small?: boolean;
  type?: "button" | "submit";
  /** Why it cannot be pressed: it stays focusable, and the reason is shown. */
  disabledBecause?: string | null | undefined;
  disabled?: boolean;
  pressed?: boolean;
  expanded?: boolean;
  tip?: string;
  onClick?: (event: MouseEvent) => void;
}

export function Button({ children, kind = "plain", icon, small, type = "button", disabledBecause, disabled, pressed, expanded, tip, onClick }: ButtonProps) {
  const refused = !!disabledBecause;
  return (
    <button
      type={type}
      class={`button ${kind} ${small ? "small-button" : ""}`}
      disabled={disabled}
      aria-disabled={refused || undefined}
      aria-pressed={pressed}
      aria-expanded={expanded}
      data-tip={disabledBecause || tip || undefined}
      onClick={(event) => {
        if (refused) event.preventDefault();
        else onClick?.(event);
      }}
    >
      {icon && <Icon name={icon} />}
      <span>{children}</span>
    </button>
  );
}

/** A button of an icon alone: `label` is its name and its tooltip. */
export function IconButton({ icon, label, onClick, pressed, expanded }: { icon: IconName; label: string; onClick?: () => void; pressed?: boolean; expanded?: boolean }) {
  return (
    <button type="button" class="button quiet icon-button" aria-label={label} data-tip={label} aria-pressed={pressed} aria-expanded={expanded} onClick={onClick}>
      <Icon name={icon} />
    </button>
  );
}

export function LinkButton({ href, children, icon, kind = "plain", small }: { href: string; children: ComponentChildren; icon?: IconName; kind?: ButtonKind; small?: boolean }) {
  return (
    <a class={`button ${kind} ${small ? "small-button" : ""}`} href={href}>
      {icon && <Icon name={icon} />}
      <span>{children}</span>
    </a>
  );
}
