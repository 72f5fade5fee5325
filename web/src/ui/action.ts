/** Asking for a change: any page calls `ask`, the dialog of the shell previews, confirms and shows the result. */
import { Store } from "../store";
import type { Action } from "../api/client";
import type { Done } from "../api/types";

export interface ActionField {
  name: string;
  label: string;
  value: string;
  type?: "text" | "number";
  hint?: string;
  placeholder?: string;
  min?: number;
  max?: number;
  options?: readonly (readonly [value: string, text: string])[];
}

export interface ActionSpec {
  title: string;
  /** What it means, beyond what the preview says. */
  explain?: string;
  confirm: string;
  danger?: boolean;
  fields?: readonly ActionField[];
  /** The change for the values of the fields; null: they are not complete yet. */
  action: (values: Record<string, string>) => Action | null;
  /** The same for the first `limit` items only: "20 first, then the rest". */
  few?: { limit: number; action: Action; look?: string };
  /** Why nothing would come of it at once; shown before and after. */
  warn?: string | null;
  onDone?: (done: Done) => void;
}

export const asked = new Store<ActionSpec | null>(null);

export const ask = (spec: ActionSpec): void => asked.set(spec);

/** Changes of what pages show: they read again after it. */
export const changes = new Store(0);
