/**
 * One WebSocket for the whole page. Components watch topics ("overview", "run:ID", "fleet", "egress", "events").
 * It reconnects with back-off and goes on at its cursor; while it is away, `useApi` polls instead.
 */
import { useEffect } from "preact/hooks";
import { Store, useStore } from "../store";
import { get, loginNeeded } from "./client";
import type { LedgerState, LiveFrame } from "./types";

export type Connection = "connecting" | "live" | "reconnecting" | "polling";

export const connection = new Store<Connection>("connecting");
/** The ledger as the server sees it; null while it is fine. `since`: when this page first heard of it. */
export const ledgerAway = new Store<{ text: string; since: string } | null>(null);
/** Set by the reader: nothing on the page changes by itself. */
export const paused = new Store(false);

type Fields = Record<string, unknown>;
interface Topic {
  store: Store<Fields | null>;
  watchers: number;
}

const RETRY_MS = [500, 1_000, 2_000, 5_000, 10_000];
// After so many failures in a row the page says that it polls; it still tries to reconnect.
const POLLING_AFTER = 3;
const NOT_ALLOWED = 1008;

// Fields that are objects by a key; a frame has only the keys that changed, with null for those that are gone.
const KEYED = new Set(["by_worker"]);
const MAX_EVENTS = 200;

/** What a topic is after a frame: a snapshot replaces it, anything else is merged field by field. */
export function merged(before: Fields | null, change: Fields | unknown[] | null, snapshot: boolean): Fields | null {
  if (change === null) return null;
  if (Array.isArray(change)) {
    const rows = snapshot || before === null ? change : [...(before.rows as unknown[]), ...change];
    return { rows: rows.slice(-MAX_EVENTS) };
  }
  if (snapshot || before === null) return change;
  const after: Fields = { ...before, ...change };
  for (const name of KEYED) {
    if (!(name in change) || !(name in before)) continue;
    const both = { ...(before[name] as Fields), ...(change[name] as Fields) };
    after[name] = Object.fromEntries(Object.entries(both).filter(([, value]) => value !== null));
  }
  return after;
}

/** Milliseconds to wait before the next attempt; jitter keeps many pages from returning at once. */
export function retryDelay(failures: number, random: number): number {
  const base = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)] ?? 10_000;
  return base * (0.75 + random / 2);
}

class LiveConnection {
  private topics = new Map<string, Topic>();
  private socket: WebSocket | null = null;
  private cursor: string | null = null;
  private failures = 0;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private sendTimer: ReturnType<typeof setTimeout> | null = null;

  topic(name: string): Topic {
    let topic = this.topics.get(name);
    if (!topic) {
      topic = { store: new Store<Fields | null>(null), watchers: 0 };
      this.topics.set(name, topic);
    }
    return topic;
  }

  watch(name: string): () => void {
    this.topic(name).watchers += 1;
    this.subscribeSoon();
    return () => {
      const topic = this.topic(name);
      topic.watchers -= 1;
      this.subscribeSoon();
    };
  }

  start(): void {
    if (this.socket === null && this.timer === null) this.connect();
  }

  /** Ends the connection and forgets what it brought: it was for somebody who has logged out. */
  stop(): void {
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
    this.socket?.close();
    this.socket = null;
    this.cursor = null;
    this.failures = 0;
    for (const topic of this.topics.values()) topic.store.set(null);
    connection.set("connecting");
  }

  retryNow(): void {
    if (this.timer === null) return;
    clearTimeout(this.timer);
    this.timer = null;
    this.connect();
  }

  setPaused(value: boolean): void {
    paused.set(value);
    this.send({ pause: value });
  }

  private connect(): void {
    this.timer = null;
    const url = new URL("api/v1/live", document.baseURI);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url);
    this.socket = socket;
    socket.onopen = () => {
      this.failures = 0;
      connection.set("live");
      this.subscribe();
      if (paused.value) this.send({ pause: true });
    };
    socket.onmessage = (event) => {
      if (typeof event.data === "string") this.receive(JSON.parse(event.data) as LiveFrame);
    };
    socket.onclose = (event) => {
      if (this.socket !== socket) return;
      this.socket = null;
      // The server may have ended it because the session has; a read finds that out.
      if (event.code === NOT_ALLOWED) void get("me").catch(() => undefined);
      if (loginNeeded.value) return;
      connection.set(this.failures >= POLLING_AFTER ? "polling" : "reconnecting");
      this.timer = setTimeout(() => this.connect(), retryDelay(this.failures, Math.random()));
      this.failures += 1;
    };
  }

  private receive(frame: LiveFrame): void {
    this.cursor = frame.cursor;
    for (const [name, change] of Object.entries(frame.changes ?? {})) {
      if (name === "ledger") {
        if (change !== null && "ok" in change) noteLedger(change as unknown as LedgerState);
        continue;
      }
      const store = this.topic(name).store;
      store.set(merged(store.value, change, frame.snapshot === true));
    }
  }

  /** Several components mount at once: one message for all of them. */
  private subscribeSoon(): void {
    if (this.sendTimer !== null) return;
    this.sendTimer = setTimeout(() => {
      this.sendTimer = null;
      this.subscribe();
    }, 20);
  }

  private subscribe(): void {
    const names = [...this.topics].filter(([, topic]) => topic.watchers > 0).map(([name]) => name);
    this.send({ subscribe: names, cursor: this.cursor });
  }

  private send(message: unknown): void {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }
}

export function noteLedger(state: LedgerState): void {
  if (state.ok) ledgerAway.set(null);
  else if (ledgerAway.value === null || ledgerAway.value.text !== state.text) {
    const since = state.since ?? ledgerAway.value?.since ?? new Date().toISOString();
    ledgerAway.set({ text: state.text, since });
  }
}

export const live = new LiveConnection();

/** The fields of a topic as far as frames have told them; null before the first. */
export function useLive<T>(name: string | null): Partial<T> | null {
  const store = live.topic(name ?? "").store;
  useEffect(() => (name === null ? undefined : live.watch(name)), [name]);
  const value = useStore(store);
  return name === null ? null : (value as Partial<T> | null);
}
