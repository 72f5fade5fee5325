import { useState } from "preact/hooks";
import type { Json } from "../api/types";
import { useNow } from "./clock";
import { ago, bounded, count, duration, safeUrl } from "./format";
import { Icon } from "./icons";
import { toast } from "./Toast";

// 24 hours everywhere, as in charts and logs.
const hourCycle = "h23";
const local = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle });
const clockOnly = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle });
const dayAndClock = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle });

/** "2026-11-16 19:33:45 UTC" */
export function utc(iso: string): string {
  return iso.replace("T", " ").replace(/(\.\d+)?(Z|\+00:00)$/, "") + " UTC";
}

/** A time in the reader's zone, UTC on hover. `mode`: "ago" counts, "clock" for today's, "full" for everything. */
export function Time({ at, mode = "short" }: { at: string | null | undefined; mode?: "ago" | "clock" | "short" | "full" }) {
  const now = useNow(mode === "ago");
  if (!at) return <span class="muted">–</span>;
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return <span>{at}</span>;
  const text =
    mode === "ago" ? ago(at, now)
    : mode === "full" ? local.format(date)
    : mode === "clock" ? clockOnly.format(date)
    : dayAndClock.format(date);
  const tip = mode === "full" ? utc(at) : `${local.format(date)} · ${utc(at)}`;
  return <time class="num nowrap" dateTime={at} data-tip={tip}>{text}</time>;
}

/** A sentence of the server; what stands between backticks is a command. */
export function Sentence({ text }: { text: string }) {
  return <>{text.split("`").map((part, i) => (i % 2 === 1 ? <code key={i}>{part}</code> : part))}</>;
}

/** A number in tabular figures. */
export function Num({ value, atLeast, zero }: { value: number | null | undefined; atLeast?: boolean; zero?: "muted" }) {
  return <span class={`num ${zero && !value ? "muted" : ""}`}>{bounded(value, atLeast)}</span>;
}

export function Duration({ seconds }: { seconds: number | null | undefined }) {
  return <span class="num nowrap" data-tip={seconds == null ? undefined : `${count(Math.round(seconds))} seconds`}>{duration(seconds)}</span>;
}

/** Time since an instant that goes on. */
export function Since({ at }: { at: string | null | undefined }) {
  const now = useNow(true);
  if (!at) return null;
  return <time class="num nowrap" dateTime={at} data-tip={`since ${local.format(new Date(at))} · ${utc(at)}`}>{duration(Math.floor(Math.max(0, now - Date.parse(at)) / 1000))}</time>;
}

/** An address of a page that was scraped: a link only when it is http or https, and nothing is told to its server. */
export function ExternalUrl({ url, text }: { url: string | null | undefined; text?: string }) {
  if (!url) return <span class="muted">–</span>;
  const safe = safeUrl(url);
  if (safe === null) return <span class="mono wrap-anywhere">{text ?? url}</span>;
  return (
    <a class="mono wrap-anywhere" href={safe} target="_blank" rel="noopener noreferrer">
      {text ?? url} <Icon name="external" size={12} /><span class="visually-hidden"> (opens in a new tab)</span>
    </a>
  );
}

async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard needs a secure origin; a plain-HTTP address of the local network is not one.
    const area = document.createElement("textarea");
    area.value = text;
    area.style.position = "fixed";
    area.style.opacity = "0";
    const place = document.querySelector("dialog[open]") ?? document.body;
    place.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  return (
    <button
      type="button"
      class="button quiet icon-button"
      aria-label={label}
      data-tip={copied ? "Copied" : label}
      onClick={() => {
        void copyText(text).then(() => {
          setCopied(true);
          toast("Copied.", "info");
          setTimeout(() => setCopied(false), 1500);
        });
      }}
    >
      <Icon name={copied ? "done" : "copy"} />
    </button>
  );
}

/** A command that does or shows the same, to be copied into a terminal. */
export function CopyCommand({ command, inline }: { command: string; inline?: boolean }) {
  if (inline) return <CopyButton text={command} label={`Copy as command: ${command}`} />;
  return (
    <div class="command">
      <span class="prompt" aria-hidden="true">$</span>
      <code class="grow">{command}</code>
      <CopyButton text={command} label="Copy the command" />
    </div>
  );
}

/** Any JSON as indented text. Long values scroll inside. */
export function JsonText({ value, label }: { value: Json | undefined; label: string }) {
  return <pre class="json" tabIndex={0} role="region" aria-label={label}>{JSON.stringify(value, null, 2)}</pre>;
}
