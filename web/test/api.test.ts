import assert from "node:assert/strict";
import { test } from "node:test";
import { apiPath, errorFrom, idempotencyKey, withQuery } from "../src/api/client";
import { merged, retryDelay } from "../src/api/live";
import { filterFrom, filterText } from "../src/pages/parts/filters";

test("queries leave out what is empty", () => {
  assert.equal(withQuery("runs", { state: "", cursor: null, limit: 5 }), "runs?limit=5");
  assert.equal(withQuery("lanes/a?run=7", { preview: true }), "lanes/a?run=7&preview=true");
  assert.equal(withQuery("runs", {}), "runs");
  assert.equal(apiPath("a/b", 3), "a%2Fb/3");
});

test("an error is the server's sentence, or says its status", () => {
  const known = errorFrom(404, { error: { code: "not_found", message: "There is no run 7.", hint: "List them." } });
  assert.deepEqual([known.status, known.code, known.message, known.hint], [404, "not_found", "There is no run 7.", "List them."]);
  assert.match(errorFrom(502, null).message, /502/);
  assert.match(errorFrom(500, "<html>").message, /500/);
});

test("a frame merges fields, a snapshot replaces them", () => {
  assert.deepEqual(merged({ done: 1, dead: 2 }, { done: 3 }, false), { done: 3, dead: 2 });
  assert.deepEqual(merged({ done: 1, dead: 2 }, { done: 3 }, true), { done: 3 });
  assert.deepEqual(merged(null, { done: 3 }, false), { done: 3 });
  assert.equal(merged({ done: 1 }, null, false), null);
});

test("fields by key lose what is null", () => {
  const before = { by_worker: { a: { leased: 1 }, b: { leased: 2 } }, workers: 2 };
  assert.deepEqual(merged(before, { by_worker: { a: null, c: { leased: 3 } } }, false), {
    by_worker: { b: { leased: 2 }, c: { leased: 3 } },
    workers: 2,
  });
});

test("new events follow the earlier ones", () => {
  assert.deepEqual(merged({ rows: [1] }, [2, 3], false), { rows: [1, 2, 3] });
  assert.deepEqual(merged({ rows: [1] }, [2], true), { rows: [2] });
  assert.equal((merged(null, Array.from({ length: 500 }, (_, n) => n), true)?.rows as number[]).length, 200);
});

test("reconnecting waits longer and longer, with jitter, and never for ever", () => {
  const waits = [0, 1, 2, 3, 4, 50].map((failures) => retryDelay(failures, 0.5));
  assert.deepEqual(waits, [500, 1000, 2000, 5000, 10_000, 10_000]);
  assert.ok(retryDelay(1, 0) < retryDelay(1, 1));
});

test("idempotency keys differ", () => {
  assert.match(idempotencyKey(), /^[0-9a-f]{32}$/);
  assert.notEqual(idempotencyKey(), idempotencyKey());
});

test("the filter of the URL is that of the change and of the sentence", () => {
  const filter = filterFrom(new URLSearchParams("state=dead&state=nonsense&stage=detail&error=503&cursor=9"));
  assert.deepEqual(filter, { states: ["dead"], stage: "detail", error: "503" });
  assert.equal(filterText(filter), "dead items of stage detail whose error has “503”");
  assert.equal(filterText({}), "items");
});
