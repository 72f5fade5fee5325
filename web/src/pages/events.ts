// Audit events in words, and the command that does the same again.
import type { AuditEvent, Json } from "../api/types";
import { command } from "../ui/format";

/** What was changed: the subject, then the facts of the event. */
export function eventSentence(event: AuditEvent): string {
  const facts = Object.entries(event.detail ?? {})
    .filter(([name, value]) => value !== null && value !== "" && name !== "command")
    .map(([name, value]) => `${name.replace(/_/g, " ")} ${plain(value)}`);
  const subject = event.subject && event.subject !== event.run_id ? event.subject : "";
  return [subject, facts.join(", ")].filter(Boolean).join(": ") || (event.run_id ? "the run" : "–");
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
