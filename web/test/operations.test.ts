import assert from "node:assert/strict";
import { test } from "node:test";
import type { AuditEvent, RunStatus } from "../src/api/types";
import { eventCommand, eventSentence, whoAndWhere } from "../src/pages/events";
import { paceText, parseDelay, policyText } from "../src/pages/pace";
import { idleText } from "../src/pages/parts/actions";
import { etaText, rateOf } from "../src/pages/parts/runs";
import { fieldNames, fieldText } from "../src/pages/values";

test("the pace of a lane is written as people say it", () => {
  assert.deepEqual([[0, 0], [0.5, 0.5], [1, 1], [5, 5], [1, 3]].map(([low, high]) => paceText(low!, high!)), ["", "2/s", "1/s", "1 every 5 s", "1 every 1–3 s"]);
  assert.equal(policyText({ limit: 4, delay_min: 0, delay_max: 0, ordered: false, shared: true, loopback_limit: null }), "4 at once");
  assert.equal(policyText({ limit: 1, delay_min: 2, delay_max: 2, ordered: true, shared: false, loopback_limit: null }), "in order, 1 every 2 s");
});

test("a delay is a pace or seconds, and anything else is refused", () => {
  assert.deepEqual(["2/s", "30/min", "1/10s", "0.5", "1-3", "1 to 3", "0", "5 s"].map(parseDelay), ["2/s", "30/min", "1/10s", [0.5, 0.5], [1, 3], [1, 3], [0, 0], [5, 5]]);
  assert.deepEqual(["", "fast", "3-1", "-1", "100000", "1e3"].map(parseDelay), [null, null, null, null, null, null]);
});

test("the table of records shows the fields that most of them have, in their order", () => {
  assert.deepEqual(fieldNames([{ a: 1, b: null, c: 2 }, { a: 1, c: 2, d: 4 }, "no record"], 2), ["a", "c"]);
  assert.equal(fieldText("a\n  b"), "a b");
  assert.equal(fieldText({ a: [1] }), '{"a":[1]}');
  assert.equal(fieldText("x".repeat(1000)).length, 301);
});

const event = (fields: Partial<AuditEvent>): AuditEvent => ({ event_id: 1, at: "2026-03-01T06:00:00Z", run_id: "r1", actor: "ops", action: "run.paused", subject: "r1", detail: {}, ...fields });

test("an event is a sentence, and its command is the one that did it", () => {
  assert.equal(eventSentence(event({})), "no item starts any more");
  assert.equal(eventSentence(event({ action: "lane.set", subject: "shop.example", detail: { limit: 2, delay_min: 1, delay_max: 3 } })), "shop.example: 2 at once, 1 every 1–3 s");
  assert.equal(eventSentence(event({ action: "scaled", subject: "pool node-c", detail: { from: 5, to: 6, most: 8, what: "workers", why: "items wait" } })), "pool node-c: 5 → 6 workers, because items wait");
  assert.equal(eventSentence(event({ action: "pool.scaled", subject: "shop", detail: { workers: null, present: 2 } })), "shop: as many as needed workers");
  assert.equal(eventSentence(event({ action: "run.paused", detail: { from: "active", because: "another run begins" } })), "no item starts any more, because another run begins");
  assert.equal(eventSentence(event({ action: "lane.slowed", subject: "shop.example", detail: { floor: 0.2, why: "robots.txt asks for it" } })), "shop.example: at least 0.2 s between two starts, because robots.txt asks for it");
  assert.equal(eventSentence(event({ action: "lane.blocked", subject: "shop.example", detail: { seconds: 0, why: "" } })), "shop.example: block lifted");
  assert.equal(eventSentence(event({ action: "alert", subject: "failure", detail: { episode: "x", why: "Too many items are dead." } })), "failure: Too many items are dead.");
  assert.equal(eventSentence(event({ action: "items.retried", detail: { items: 1 } })), "1 item");
  assert.equal(eventSentence(event({ action: "token.added", subject: "ops", detail: { role: "operator" } })), "ops: may log in as operator");
  assert.deepEqual([whoAndWhere("ops@192.0.2.7"), whoAndWhere("shoal run"), whoAndWhere("")], [["ops", "192.0.2.7"], ["shoal run", ""], ["", ""]]);
  assert.equal(eventSentence(event({ action: "lane.changed", subject: "shop.example", detail: { limit: 4, delay: [0.5, 1], why: "" } })), "shop.example: limit 4, delay 0.5, 1");
  assert.equal(eventCommand(event({})), "shoal runs pause r1");
  assert.equal(eventCommand(event({ action: "lane.changed", detail: { command: "shoal lanes set shop.example --limit 4" } })), "shoal lanes set shop.example --limit 4");
  assert.equal(eventCommand(event({ action: "token.added", run_id: null })), null);
});

test("the rate and the time left of a run agree", () => {
  const run = { state: "active", rate_per_minute: 264, ended: 6, created_at: "2026-03-01T06:00:00Z", finished_at: null, eta_seconds: null, growing: false, remaining: 20, critical_lane: null, waiting_for: "a live worker" } as unknown as RunStatus;
  assert.equal(rateOf(run), 264);
  assert.deepEqual(etaText(run), { text: "unknown", note: "waiting: a live worker" });
  assert.equal(etaText({ ...run, growing: true, eta_seconds: [30, 34] }).text, "unknown");
  const over = { ...run, state: "finished" as const, rate_per_minute: 0, finished_at: "2026-03-01T06:00:03Z" };
  assert.equal(rateOf(over), 120, "in the whole run, whatever was measured lately");
  assert.equal(rateOf({ ...over, finished_at: "2026-03-01T06:00:01Z" }), null);
});

test("a retry says when nobody would work on the items", () => {
  const workers = (live: number) => ({ workers: { live, draining: 0, lost: 0, running: 0, idle: 0 } });
  assert.match(idleText(workers(0)) ?? "", /^No live worker/);
  assert.deepEqual([idleText(workers(1)), idleText(null)], [null, null]);
});
