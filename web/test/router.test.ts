import assert from "node:assert/strict";
import { test } from "node:test";
import { match, pathBelow } from "../src/router/router";
import { findRoute, ROUTES } from "../src/routes";

test("paths below a base, at the root and under a sub-path", () => {
  assert.equal(pathBelow("/", "/"), "");
  assert.equal(pathBelow("/", "/runs/7/items/"), "runs/7/items");
  assert.equal(pathBelow("/tools/shoal/", "/tools/shoal/runs"), "runs");
  assert.equal(pathBelow("/tools/shoal/", "/tools/shoal/"), "");
});

test("parts of a path may hold any character", () => {
  assert.deepEqual(match("runs/:run/items/:item", "runs/a%2Fb%20c/items/3"), { run: "a/b c", item: "3" });
  assert.equal(match("runs/:run", "runs/%E0%A4%A"), null);
  assert.equal(match("runs/:run", "runs"), null);
  assert.deepEqual(match("", ""), {});
});

test("an address leads to one page, an unknown one to none", () => {
  assert.equal(findRoute("")?.route.title, "Overview");
  assert.deepEqual(findRoute("runs/latest:shop/failures")?.params, { run: "latest:shop" });
  assert.equal(findRoute("nothing/here"), null);
});

test("keys after g are unique", () => {
  const keys = ROUTES.flatMap((route) => (route.key ? [route.key] : []));
  assert.equal(new Set(keys).size, keys.length);
});

test("no page has an address that the server uses itself", () => {
  const taken = ["api", "jobs", "metrics", "healthz", "readyz", "assets", "settings", "logs", "cleanup"];
  for (const route of ROUTES) assert.ok(!taken.includes(route.pattern.split("/")[0] ?? ""), route.pattern);
});
