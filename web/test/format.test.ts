import assert from "node:assert/strict";
import { test } from "node:test";
import * as format from "../src/ui/format";

test("a share never rounds to all or nothing", () => {
  assert.equal(format.percent(0.99996), ">99.9%");
  assert.equal(format.percent(0.00004), "<0.1%");
  assert.deepEqual([0, 0.0312, 0.5, 0.994, 1].map(format.percent), ["0%", "3.1%", "50%", "99.4%", "100%"]);
  assert.equal(format.percent(null), "–");
});

test("durations have two units at most and no sixty seconds", () => {
  const written = [0, 0.0004, 0.042, 0.9999, 3.2, 9.96, 59.7, 95, 3599.6, 13_200, 90_061].map(format.duration);
  assert.deepEqual(written, ["0 s", "<1 ms", "42 ms", "1.0 s", "3.2 s", "10 s", "1m", "1m 35s", "1h", "3h 40m", "1d 1h"]);
  assert.equal(format.duration(null), "–");
  assert.equal(format.range([13_200, 16_200]), "3h 40m – 4h 30m");
  assert.equal(format.range([60, 60.2]), "1m");
});

test("counts say when they are bounded", () => {
  assert.equal(format.bounded(10_000, true), "10,000+");
  assert.equal(format.bounded(37, false), "37");
  assert.deepEqual([7, 2.5, 940, 12_400, 999_949, 999_951, 5_012_480].map(format.short), ["7", "2.5", "940", "12.4k", "999.9k", "1M", "5M"]);
});

test("times count towards both sides", () => {
  const now = Date.parse("2026-03-01T06:00:00Z");
  assert.equal(format.ago("2026-03-01T05:59:48Z", now), "12 s ago");
  assert.equal(format.ago("2026-03-01T06:03:00Z", now), "in 3 min");
  assert.equal(format.ago("2026-03-01T06:00:01Z", now), "now");
  assert.equal(format.ago("not a time", now), "–");
});

test("only http and https addresses become links", () => {
  assert.equal(format.safeUrl("https://shop.example/a?b=c"), "https://shop.example/a?b=c");
  for (const hostile of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", " https://shop.example", "//shop.example", "https://", "file:///etc/passwd", "", null]) {
    assert.equal(format.safeUrl(hostile), null, String(hostile));
  }
});

test("commands can be pasted into a shell", () => {
  assert.equal(format.command("items", "ls", "run-1", ["--state", "dead"], ["--stage", ""]), "shoal items ls run-1 --state dead");
  assert.equal(format.command("items", "ls", ["--error", "it's $(rm -rf /)"]), `shoal items ls --error 'it'\\''s $(rm -rf /)'`);
});

test("differences of figures", () => {
  assert.equal(format.difference(100, 112), "+12%");
  assert.equal(format.difference(1000, 966), "−3.4%");
  assert.equal(format.difference(1, 14), "×14");
  assert.equal(format.difference(0, 3), "new");
  assert.equal(format.difference(5, 5), "same");
  assert.equal(format.difference(null, 5), "–");
});

test("sizes", () => {
  assert.deepEqual([0, 999, 1000, 5_120_000_000].map(format.bytes), ["0 B", "999 B", "1.0 KB", "5.1 GB"]);
});
