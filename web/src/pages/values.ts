// Values of records in tables: which fields to show, and one line of text for each value.
import type { Json } from "../api/types";

/** The names of fields that most records have, in the order of the first record; at most `most`. */
export function fieldNames(records: Json[], most: number): string[] {
  const found = new Map<string, number>();
  for (const record of records) {
    if (record === null || typeof record !== "object" || Array.isArray(record)) continue;
    for (const [name, value] of Object.entries(record)) {
      found.set(name, (found.get(name) ?? 0) + (value === null || value === "" ? 0.5 : 1));
    }
  }
  const order = [...found.keys()];
  const best = [...order].sort((a, b) => (found.get(b) ?? 0) - (found.get(a) ?? 0) || order.indexOf(a) - order.indexOf(b)).slice(0, most);
  return order.filter((name) => best.includes(name));
}

const MOST = 300;

/** A value as one line; lists and objects as JSON. */
export function fieldText(value: Json): string {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > MOST ? `${line.slice(0, MOST)}…` : line;
}
