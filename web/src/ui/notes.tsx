import type { ComponentChildren } from "preact";
import { ApiError } from "../api/client";
import { Button } from "./Button";
import { Icon, type IconName } from "./icons";
import { Sentence } from "./values";

/** Nothing is there: what it means, and what to do. */
export function Empty({ title, children, icon = "info" }: { title: string; children?: ComponentChildren; icon?: IconName }) {
  return (
    <div class="empty">
      <Icon name={icon} size={20} />
      <p class="strong">{title}</p>
      {children && <div class="muted stack tight">{children}</div>}
    </div>
  );
}

/** Something went wrong: the sentence of the server and its remedy. With `stale`, older data is still shown below. */
export function ErrorNote({ error, onRetry, stale }: { error: ApiError; onRetry?: () => void; stale?: boolean }) {
  return (
    <div class="note bad" role="alert">
      <Icon name="warn" />
      <div class="grow wrap-anywhere">
        <p><span class="strong"><Sentence text={error.message} /></span>{error.hint && <> <Sentence text={error.hint} /></>}</p>
        {stale && <p class="small">Below is what was last known.</p>}
      </div>
      {onRetry && <Button small onClick={onRetry}>Try again</Button>}
    </div>
  );
}

export function Note({ tone = "info", children }: { tone?: "info" | "warn" | "bad" | "ok"; children: ComponentChildren }) {
  return (
    <div class={`note ${tone}`}>
      <Icon name={tone === "ok" ? "done" : tone === "info" ? "info" : "warn"} />
      <div class="grow wrap-anywhere">{children}</div>
    </div>
  );
}

/** Keeps the place of something that is loading for the first time. */
export function Placeholder({ height, label = "Loading" }: { height: number; label?: string }) {
  return <div class="placeholder" style={{ height: `${height}px` }} role="status"><span class="visually-hidden">{label}</span></div>;
}
