// Audit events in words, and the command that does the same again.
import type { AuditEvent, Json } from "../api/types";
import { command, count, duration } from "../ui/format";
import { paceText } from "./pace";

const TEXTS: Record<string, string> = {
  "run.sealed": "no more items come from outside",
  "run.paused": "no item starts any more",
  "run.active": "items may start",
  "run.finished": "every item has ended",
  "run.cancelled": "open items were cancelled",
};
// What a change did to its subject: "ops: may view".
const SUBJECT_TEXTS: Record<string, string> = {
  "worker.draining": "ends what it runs, then stops",
  "token.removed": "cannot log in any more",
  "session.started": "logged in",
  "session.ended": "logged out",
  "failure.muted": "hidden in lists",
  "failure.unmuted": "shown in lists again",
};

/** What was changed: the subject, then the facts of the event. */
export function eventSentence(event: AuditEvent): string {
  const own = ownSentence(event, event.detail ?? {});
  if (own) return own;
  const facts = Object.entries(event.detail ?? {})
    .filter(([name, value]) => value !== null && value !== "" && name !== "command")
    .map(([name, value]) => `${name.replace(/_/g, " ")} ${plain(value)}`);
  const subject = event.subject && event.subject !== event.run_id ? event.subject : "";
  return [subject, facts.join(", ")].filter(Boolean).join(": ") || (event.run_id ? "the run" : "–");
}

/** The sentence of an event that is written often; empty for others. */
function ownSentence({ action, subject }: AuditEvent, detail: AuditEvent["detail"]): string {
  const number = (name: string): number | null => (typeof detail[name] === "number" ? (detail[name] as number) : null);
  const reason = detail.because ?? detail.why;
  const because = reason ? `, because ${plain(reason)}` : "";
  if (action === "run.created") return typeof detail.scraper === "string" ? `a run of ${detail.scraper}` : "";
  if (action in TEXTS) return `${TEXTS[action]!}${because}`;
  if (action in SUBJECT_TEXTS) return `${action.startsWith("failure.") ? `group ${subject}` : subject}: ${SUBJECT_TEXTS[action]!}`;
  if (action === "alert" && reason) return `${subject}: ${plain(reason)}`;
  if (action === "lane.slowed") return `${subject}: ${detail.floor ? `at least ${plain(detail.floor)} s between two starts` : "no least delay any more"}${because}`;
  if (action === "lane.blocked") return `${subject}: ${number("seconds") ? `blocked for ${duration(number("seconds"))}` : "block lifted"}${because}`;
  if (action === "token.added") return `${subject}: may log in as ${plain(detail.role ?? "viewer")}`;
  if (/^items\.(retried|cancelled)$/.test(action) && number("items") !== null) return `${count(number("items"))} ${number("items") === 1 ? "item" : "items"}`;
  if (action === "lane.set") {
    const low = number("delay_min");
    const parts = [
      number("limit") === null ? "" : `${number("limit")} at once`,
      low === null ? "" : paceText(low, number("delay_max") ?? low) || "no delay",
      typeof detail.paused === "boolean" ? (detail.paused ? "held" : "released") : "",
    ].filter(Boolean);
    return parts.length > 0 ? `${subject}: ${parts.join(", ")}` : "";
  }
  if (action === "scaled" && number("from") !== null) {
    return `${subject}: ${detail.from} → ${detail.to} ${plain(detail.what ?? "workers")}${because}`;
  }
  if (action === "pool.scaled") return `${subject}: ${plain(detail.to ?? detail.workers ?? "as many as needed")} workers`;
  return "";
}

/** Who made a change, and from which address if it came over the network: actors are NAME or NAME@ADDRESS. */
export function whoAndWhere(actor: string): [who: string, where: string] {
  const at = actor.lastIndexOf("@");
  return at > 0 ? [actor.slice(0, at), actor.slice(at + 1)] : [actor, ""];
}

function plain(value: Json): string {
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.length > 6 ? `${value.slice(0, 6).map(plain).join(", ")}, …` : value.map(plain).join(", ");
  return JSON.stringify(value);
}

/** A command that shows what the event is about, or that did it, where the event says so. */
export function eventCommand(event: AuditEvent): string | null {
  const said = event.detail?.["command"];
  if (typeof said === "string" && said.startsWith("shoal ")) return said;
  const verb = /^runs?[._](paused|resumed|cancelled|sealed)$/.exec(event.action)?.[1];
  const verbs: Record<string, string> = { paused: "pause", resumed: "resume", cancelled: "cancel", sealed: "seal" };
  if (verb && event.run_id) return command("runs", verbs[verb], event.run_id);
  return event.run_id ? command("runs", "show", event.run_id) : null;
}
