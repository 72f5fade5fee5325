import assert from "node:assert/strict";
import { test } from "node:test";
import type { Budget, History, LaneSpan, TimelineLane } from "../src/api/types";
import { attemptSegments } from "../src/charts/attempts";
import { budgetLevel, budgetShare } from "../src/charts/budget";
import { causeColumns, historyMarks, quantileColumns, rateColumns, stateColumns } from "../src/charts/history";
import { timeTicks, visibleRows } from "../src/charts/scale";
import { groupMarks, lastKnown, middleOf, layers, nextKnown, type Series, tableRows, thickest, withGaps } from "../src/charts/series";
import { busyShare, fittedFrom, laneOrder, outcomeTone, placeSpans, rowsOf } from "../src/charts/spans";
import { areUsStates, neighbour, placeTiles, progressStep, sumTiles, type TileData, usState } from "../src/charts/tiles";

const series = (key: string, values: (number | null)[]): Series => ({ key, label: key, color: "series-1", values });

test("a gap in time is a gap in every series", () => {
  const { at, series: shown } = withGaps([0, 60, 240, 300], [series("a", [1, 2, 3, 4])], 60);
  assert.deepEqual(at, [0, 60, 120, 240, 300]);
  assert.deepEqual(shown[0]?.values, [1, 2, null, 3, 4]);
  const whole = [0, 60, 120];
  assert.equal(withGaps(whole, [], 60).at, whole);
});

test("layers of a stack add up, and a point without any value stays empty", () => {
  const edges = layers([series("a", [1, null, 2]), series("b", [4, null, null]), series("c", [null, null, 3])]);
  assert.deepEqual(edges, [[1, null, 2], [5, null, 2], [5, null, 5]]);
});

test("arrow keys step over empty points and stop at the ends", () => {
  const data = [series("a", [1, null, null, 4, null])];
  assert.equal(nextKnown(data, 0, 1), 3);
  assert.equal(nextKnown(data, 3, 1), 3);
  assert.equal(nextKnown(data, 3, -1), 0);
  assert.equal(lastKnown(data), 3);
  assert.equal(lastKnown([series("a", [null])]), -1);
});

test("the table twin has every point with a value, the newest first", () => {
  const rows = tableRows([0, 60, 120], [series("a", [1, null, 3]), series("b", [null, null, 0])]);
  assert.deepEqual(rows, [{ at: 120, values: [3, 0] }, { at: 0, values: [1, null] }]);
});

test("marks whose labels would overlap are drawn as one", () => {
  const mark = (at: number) => ({ at, label: "x", text: "x" });
  const groups = groupMarks([mark(300), mark(10), mark(50), mark(950), mark(780), mark(2000)], (at) => at, 1000, 100);
  assert.deepEqual(groups.map((group) => [group.x, group.flip, group.marks.length]), [[10, false, 2], [300, false, 1], [780, false, 2]]);
});

test("a layer gets its name only where it is thick enough for it", () => {
  assert.equal(thickest(null, [1, 1, 1, 9, 9, 9, 9, 9, 1], 5), 5);
  assert.equal(thickest([0, 0, 0, 8, 8, 8, 8, 8, 0], [1, 1, 1, 9, 9, 9, 9, 9, 1], 5), null);
});

test("ticks of time are round in the reader's zone", () => {
  const from = Date.parse("2026-03-01T05:07:00Z") / 1000;
  const clock = (offset: number) => timeTicks(from, from + 3600, 5, offset).map((at) => new Date((at - offset * 60) * 1000).toISOString().slice(11, 16));
  assert.deepEqual(clock(0), ["05:15", "05:30", "05:45", "06:00"]);
  assert.deepEqual(clock(-330), ["10:45", "11:00", "11:15", "11:30"]);
  assert.deepEqual(timeTicks(5, 5, 5), []);
});

test("only visible rows are drawn", () => {
  assert.deepEqual(visibleRows(4000, 400, 40, 100_000, 4), { first: 96, last: 114 });
  assert.deepEqual(visibleRows(0, 400, 40, 3, 4), { first: 0, last: 3 });
});

const iso = (second: number): string => new Date(second * 1000).toISOString();
const span = (begin: number, end: number | null, outcome: string | null = "done"): LaneSpan => ({ item_id: begin, key: null, begin: iso(begin), end: end === null ? null : iso(end), outcome: end === null ? null : outcome });

test("attempts that ran at once are one below the other, attempts in order are on one row", () => {
  const inOrder = placeSpans([span(20, 30), span(0, 10), span(10, 20)], 100, 4);
  assert.deepEqual(inOrder.map((each) => [each.from, each.row]), [[0, 0], [10, 0], [20, 0]]);
  const atOnce = placeSpans([span(0, 50), span(5, 10), span(6, 40), span(11, 20)], 100, 4);
  assert.deepEqual(atOnce.map((each) => each.row), [0, 1, 2, 1]);
  assert.equal(rowsOf(atOnce), 3);
  assert.equal(rowsOf(placeSpans(Array.from({ length: 30 }, (_, i) => span(i, 90)), 100, 4)), 4);
});

test("a running attempt reaches to now, and a broken time is left out", () => {
  const placed = placeSpans([span(10, null), { ...span(0, 5), begin: "soon" }], 60, 4);
  assert.deepEqual(placed.map((each) => [each.from, each.to, each.open]), [[10, 60, true]]);
  assert.equal(busyShare(placeSpans([span(0, 10), span(5, 20), span(80, 100)], 100, 4), 0, 100), 0.4);
});

test("every outcome has a tone, and an unknown one is bad", () => {
  assert.deepEqual(["done", "transient", "permanent", "skipped", "something"].map((outcome) => outcomeTone(outcome, false)), ["ok", "warn", "bad", "off", "bad"]);
  assert.equal(outcomeTone(null, true), "run");
});

test("the lane that finishes last comes first, then lanes in order, then the longest", () => {
  const lane = (name: string, fields: Partial<TimelineLane> = {}): TimelineLane => ({ lane: name, ordered: false, limit: 1, critical: false, eta_seconds: null, spans: [], ...fields });
  const names = laneOrder([lane("b", { eta_seconds: 5 }), lane("a"), lane("c", { eta_seconds: [1, 90] }), lane("z", { critical: true }), lane("o", { ordered: true })]).map((each) => each.lane);
  assert.deepEqual(names, ["z", "o", "c", "b", "a"]);
});

const tile = (name: string, total = 10, ended = 5, more: Partial<TileData> = {}): TileData => ({ name, total, ended, dead: 0, leased: 0, eta_seconds: null, ...more });

test("US states are found by code and by name, countries are not taken for them", () => {
  assert.deepEqual(["CA", "us-ca", "US_TX", "New York", "new_york"].map((name) => usState(name)?.code), ["CA", "CA", "TX", "NY", "NY"]);
  assert.equal(areUsStates(["CA", "TX", "NY", "WA", "other"]), true);
  assert.equal(areUsStates(["de", "fr", "it", "es", "pl", "in"]), false);
  assert.equal(areUsStates(["CA", "TX"]), false);
});

test("no two states share a place, and every state has one", () => {
  const { states, missing, others } = placeTiles(["CA", "TX", "NY", "WA", "us-ca", "eu"].map((name) => tile(name)));
  assert.deepEqual(others.map((each) => each.name), ["eu", "us-ca"]);
  const places = [...states, ...missing].map((each) => `${each.column}:${each.row}`);
  assert.equal(places.length, 51);
  assert.equal(new Set(places).size, 51);
});

test("progress is full only when everything has ended", () => {
  assert.deepEqual([0, 1, 2500, 9999, 10_000].map((ended) => progressStep(tile("a", 10_000, ended))), [0, 1, 2, 4, 5]);
  assert.equal(progressStep(tile("a", 0, 0)), 0);
});

test("tiles of several stages are summed, the longest time counts", () => {
  const [sum] = sumTiles([tile("CA", 10, 5, { dead: 1, eta_seconds: 60 }), tile("CA", 20, 5, { eta_seconds: [10, 300] })]);
  assert.deepEqual(sum, { name: "CA", total: 30, ended: 10, dead: 1, leased: 0, eta_seconds: [10, 300] });
});

test("an arrow key leads to the nearest tile in its direction", () => {
  const places = [{ x: 0, y: 0 }, { x: 10, y: 0 }, { x: 20, y: 10 }, { x: 10, y: 20 }];
  assert.equal(neighbour(places, 0, "ArrowRight"), 1);
  assert.equal(neighbour(places, 1, "ArrowDown"), 3);
  assert.equal(neighbour(places, 0, "ArrowLeft"), 0);
  assert.equal(neighbour(places, 0, "x"), 0);
});

test("a budget is low when it ends before it is full again", () => {
  const budget = (fields: Partial<Budget>): Budget => ({ resource: "", capacity: 100, left: 50, free: 50, reset_seconds: 600, from_site: false, resting: false, ...fields });
  assert.equal(budgetLevel(budget({})), "fine");
  assert.equal(budgetLevel(budget({ empty_in_seconds: 300 })), "low");
  assert.equal(budgetLevel(budget({ empty_in_seconds: 900 })), "fine");
  assert.equal(budgetLevel(budget({ left: 0 })), "empty");
  assert.equal(budgetLevel(budget({ resting: true })), "resting");
  assert.equal(budgetShare(budget({ left: 250 })), 1);
});

test("waits are drawn shorter when they would hide the work, and are marked so", () => {
  const attempt = (from: number, to: number | null) => ({ claimed_at: iso(from), ended_at: to === null ? null : iso(to) });
  const even = attemptSegments([attempt(10, 20), attempt(20, null)], 0, 30);
  assert.deepEqual(even.map((each) => [each.kind, Math.round(each.left * 30), Math.round(each.width * 30), each.shortened]), [["wait", 0, 10, false], ["work", 10, 10, false], ["work", 20, 10, false]]);
  const days = attemptSegments([attempt(86_400, 86_401), attempt(172_800, 172_803)], 0, 200_000);
  const work = days.filter((each) => each.kind === "work").reduce((sum, each) => sum + each.width, 0);
  assert.ok(work > 0.39);
  assert.ok(days.every((each) => each.shortened === (each.kind === "wait")));
  const total = days.reduce((sum, each) => sum + each.width, 0);
  assert.ok(Math.abs(total - 1) < 1e-9);
});

const empty = { count: 0, p50: null, p95: null, p99: null };
const point = (second: number, fields: Partial<History["points"][number]>): History["points"][number] => ({ at: iso(second), ended: { done: 0, dead: 0, skipped: 0, retried: 0, throttled: 0 }, records: 0, wait: empty, work: empty, waiting_for: {}, ...fields });

test("a history becomes series: rates per minute, quantiles with gaps, causes with a rest", () => {
  const causes = Object.fromEntries(Array.from({ length: 12 }, (_, i) => [`cause ${i}`, 100 - i]));
  const history: History = {
    step_seconds: 120,
    points: [
      point(0, { ended: { done: 10, dead: 2, skipped: 0, retried: 0, throttled: 0 }, done: 5, waiting: 3, waiting_for: causes }),
      point(120, { wait: { count: 3, p50: 1, p95: 2, p99: 3 } }),
    ],
    marks: [{ at: iso(60), actor: "ops@192.0.2.7", action: "run.paused", text: "paused" }, { at: "never", actor: "", action: "x", text: "" }],
  };
  assert.deepEqual(rateColumns(history).series[0]?.values, [5, 0]);
  assert.deepEqual(rateColumns(history, 60, 130).series[0]?.values, [10, null], "only the time that has passed counts");
  assert.deepEqual(rateColumns(history, 60, 63).series[0]?.values, [200, null], "a run of 3 s has a rate");
  assert.deepEqual(rateColumns(history, 60, 61).series[0]?.values, [null, null], "one of a second is too short");
  assert.deepEqual(quantileColumns(history, "wait").series.map((one) => one.values), [[null, 1], [null, 2], [null, 3]]);
  assert.deepEqual(stateColumns(history).series.map((one) => one.key), ["done", "waiting"]);
  const stacked = causeColumns(history).series;
  assert.equal(stacked.length, 8);
  assert.equal(stacked[7]?.label, "other");
  assert.equal(stacked.reduce((sum, one) => sum + (one.values[0] ?? 0), 0), Object.values(causes).reduce((sum, n) => sum + n, 0));
  assert.deepEqual(historyMarks(history), [{ at: 60, label: "run paused", text: "paused (ops@192.0.2.7)" }]);
});

test("a cause keeps its colour and its place, whatever else there is", () => {
  const columns = (waiting_for: Record<string, number>) => causeColumns({ step_seconds: 60, points: [point(0, { done: 1, waiting_for })], marks: [] }).series;
  const colors = (series: ReturnType<typeof columns>) => new Map(series.map((one) => [one.key, one.color]));
  const few = columns({ retries: 9, "host limit": 1 });
  const many = columns({ "egress isp": 5, "host limit": 100, "host delay": 2, retries: 3 });
  assert.deepEqual(few.map((one) => one.key), ["host limit", "retries"]);
  assert.deepEqual(many.map((one) => one.key), ["host delay", "host limit", "retries", "egress isp"]);
  for (const [cause, color] of colors(few)) assert.equal(colors(many).get(cause), color);
  assert.equal(new Set(colors(many).values()).size, 4);
});

test("a point is in the middle of what the run has of its step", () => {
  assert.equal(middleOf(60, 60), 90);
  assert.equal(middleOf(60, 60, 100, 104), 102);
  assert.equal(middleOf(60, 60, 0, 80), 70);
  assert.equal(middleOf(0, 60, 100, 104), 30, "the run has nothing of this step");
});

test("a young run fills its charts", () => {
  const quiet = { ready: undefined, done: null } as unknown as Partial<History["points"][number]>;
  const points = Array.from({ length: 60 }, (_, i) => point(i * 60, i < 40 ? quiet : { done: i, ended: { done: 1, dead: 0, skipped: 0, retried: 0, throttled: 0 } }));
  assert.equal(rateColumns({ step_seconds: 60, points, marks: [] }).at[0], 40 * 60);
  assert.equal(rateColumns({ step_seconds: 60, points: points.slice(0, 42), marks: [] }).at.length, 3);
  const lane = { lane: "a", ordered: true, limit: 1, critical: false, eta_seconds: null, spans: [span(3500, 3520), span(3540, null)] };
  assert.ok(Math.abs(fittedFrom([lane], 0, 3600) - 3498) < 1);
  assert.equal(fittedFrom([{ ...lane, spans: [span(100, 200)] }], 0, 3600), 0);
  assert.equal(fittedFrom([], 0, 3600), 3540);
});
