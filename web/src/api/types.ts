/** The JSON of /api/v1. Times are ISO 8601 in UTC, durations are seconds; names are those of `shoal --json`. */

export type Role = "viewer" | "operator";
export type RunState = "active" | "paused" | "finished" | "cancelled";
export type ItemState = "ready" | "waiting" | "delayed" | "leased" | "done" | "dead" | "skipped" | "cancelled";
export type WorkerState = "live" | "draining" | "stopped" | "lost";

export const ITEM_STATES: readonly ItemState[] = [
  "ready", "waiting", "delayed", "leased", "done", "dead", "skipped", "cancelled",
];

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** A part of a keyset list; `cursor` gets the next part. `command`: what lists the same on the command line. */
export interface Page<Row> {
  rows: Row[];
  cursor: string | null;
  command?: string;
}

export interface Me {
  name: string;
  role: Role;
  by: "loopback" | "token" | "session";
  expires_at: string | null;
  version: string;
  project: string | null;
  ledger: string;
  backend: "sqlite" | "postgres";
  time: string;
  login_required: boolean;
  csrf: string;
  /** What the routes of the project are for. */
  pages: string[];
}

export type StateCounts = Record<ItemState, number>;

export interface Counts extends StateCounts {
  total: number;
  ended: number;
  remaining: number;
  records: number;
  duplicates: number;
  new_records: number;
  changed_records: number;
  unchanged_records: number;
  dropped_records: number;
}

export interface Run extends Counts {
  run_id: string;
  scraper: string;
  state: RunState;
  sealed: boolean;
  created_at: string;
  finished_at: string | null;
}

/** A condition that holds now and that an alert is raised for. */
export interface Condition {
  kind: string;
  episode: string;
  text: string;
}

export interface Budget {
  resource: string;
  capacity: number;
  left: number;
  free: number;
  reset_seconds: number | null;
  from_site: boolean;
  resting: boolean;
  /** Of a single exit: when it will be spent at the pace of this window. */
  empty_in_seconds?: number | null;
}

export type PoolKind = "proxies" | "tokens" | "tor";
export type ExitState = "good" | "banned" | "resting" | "trial";
/** Seconds to the end: one value by the pace of a lane or partition alone, else the shortest and the longest. */
export type Eta = number | [number, number] | null;

export interface PoolView {
  pool: string;
  kind: PoolKind;
  exits: number;
  good: number;
  banned: number;
  resting: number;
  trial: number;
  members: number;
  first_back: number | null;
  budgets: Budget[];
  text?: string;
}

export interface RunStatus extends Run {
  done_share: number;
  ended_share: number;
  rate_per_minute: number | null;
  ok: number | null;
  eta_seconds: [number, number] | null;
  total_grows: boolean;
  growing: boolean;
  /** The bottleneck in a few words, and in a sentence. */
  waiting_for: string;
  waiting_because: string;
  /** The lane that will end last. */
  critical_lane: string | null;
  egress: PoolView[];
  alerts: Condition[];
  sinks: Sink[];
}

export interface Sink {
  sink: string;
  kind: string;
  place: string;
  state: string;
  delivered: number;
  behind: number;
  behind_is_at_least: boolean;
  lag_seconds: number;
  dead_letters: number;
  delivered_at: string | null;
  failing_since: string | null;
  error: string | null;
}

export interface Reason {
  code: string;
  text: string;
  since: string | null;
  until: string | null;
  items: number | null;
  pool: string | null;
}

export interface Overview {
  at: string;
  runs: RunStatus[];
  workers: { live: number; draining: number; lost: number; nodes: number };
  egress: PoolView[];
  alerts: Alert[];
  ledger: { ok: boolean; text: string; size_bytes: number | null; latency_seconds: number | null };
  empty: boolean;
}

export interface Alert {
  at: string;
  kind: string;
  run_id: string | null;
  scraper: string | null;
  title: string;
  body: string;
  /** Per address, without secrets, how the delivery stands. */
  delivery: Record<string, string> | null;
}

export interface WorkerProgress {
  worker: string;
  /** live, draining, dead or gone */
  state: string;
  leased: number;
  done: number;
  dead: number;
  skipped: number;
}

export interface Partition extends Counts {
  stage: string;
  partition: string;
  eta_seconds: Eta;
}

export interface RunDetail extends RunStatus {
  stages: string[];
  stage_counts: Record<string, Counts>;
  max_attempts: number;
  max_rescues: number;
  code_version: string | null;
  settings: Record<string, Json>;
  events: AuditEvent[];
  why: Reason[];
  workers: { live: number; draining: number; lost: number; running: number; idle: number };
  worker_progress: WorkerProgress[];
  versions: Record<string, number>;
  code_versions: Record<string, number>;
  command?: string;
}

export interface Quantiles {
  count: number;
  p50: number | null;
  p95: number | null;
  p99: number | null;
}

export interface HistoryPoint extends Partial<StateCounts> {
  at: string;
  ended: { done: number; dead: number; skipped: number; retried: number; throttled: number };
  records: number;
  wait: Quantiles;
  work: Quantiles;
  waiting_for: Record<string, number>;
}

/** A change that somebody made: drawn on the charts. */
export interface Mark {
  at: string;
  actor: string;
  action: string;
  text: string;
}

export interface History {
  step_seconds: number;
  points: HistoryPoint[];
  marks: Mark[];
}

export interface Why {
  run_id: string;
  text: string;
  since: string | null;
  until: string | null;
  reasons: Reason[];
  eta_seconds: [number, number] | null;
  growing: boolean;
  critical_lane: string | null;
  critical_seconds: [number, number] | null;
  bottleneck: { cause: string; share: number | null; text: string };
  command?: string;
}

export interface Item {
  run_id: string;
  item_id: number;
  stage: string;
  partition: string;
  key: string | null;
  url: string | null;
  payload: Record<string, Json> | null;
  request: Record<string, Json> | null;
  depth: number;
  lane: string | null;
  priority: number;
  max_attempts: number;
  state: ItemState;
  since: string;
  due_at: string | null;
  worker: string | null;
  tries: number;
  rescues: number;
  epoch: number;
  outcome: string | null;
  error: string | null;
  parent: number | null;
  waiting_text?: string;
}

export interface ItemPage extends Page<Item> {
  count: number | null;
  count_is_at_least: boolean;
}

export interface Attempt {
  epoch: number;
  worker: string | null;
  claimed_at: string;
  ended_at: string;
  seconds: number;
  outcome: string;
  error: string | null;
  egress: string | null;
  detail: Record<string, Json> | null;
}

export interface Result {
  item_id: number;
  n: number;
  stage: string;
  key: string | null;
  url: string | null;
  record: Record<string, Json>;
  record_key: Json;
  change: string | null;
}

export interface ItemDetail extends Item {
  attempts: Attempt[];
  why: Reason[];
  results: Result[];
  children: { item_id: number; stage: string; name: string; state: ItemState }[];
  children_is_at_least: boolean;
  command?: string;
}

export interface Failure {
  failure_id: string;
  stage: string;
  outcome: string;
  host: string;
  message: string;
  items: number;
  items_is_at_least: boolean;
  first_at: string;
  last_at: string;
  error: string | null;
  item_id: number;
  muted: boolean;
  trend: number[];
}

export interface LanePolicy {
  limit: number;
  delay_min: number;
  delay_max: number;
  ordered: boolean;
  shared: boolean;
  loopback_limit: number | null;
}

/** A lane; what is of one run (from `leased` on) is there in lists of a run. */
export interface Lane {
  lane: string;
  run_id: string | null;
  policy: LanePolicy;
  paused: boolean;
  blocked_seconds: number;
  blocked_why: string | null;
  next_seconds: number;
  taken: number;
  unstarted: number;
  waiting: number;
  waiting_is_at_least?: boolean;
  set_by_operator: boolean;
  floor: number;
  floor_why: string | null;
  visiting: number;
  leased: number | null;
  ended: number | null;
  ended_is_at_least?: boolean;
  eta_seconds: Eta;
  ordered: boolean;
  critical: boolean;
}

export interface LaneSpan {
  item_id: number;
  key: string | null;
  begin: string;
  end: string | null;
  outcome: string | null;
}

export interface TimelineLane {
  lane: string;
  ordered: boolean;
  limit: number;
  /** Items that wait in it; a server that is older does not say. */
  waiting?: number;
  critical: boolean;
  eta_seconds: Eta;
  spans: LaneSpan[];
}

export interface LaneTimeline {
  from: string;
  to: string;
  lanes: TimelineLane[];
}

export interface FieldCoverage {
  field: string;
  present: number;
  filled: number;
  filled_share: number;
  types: string[];
  example: string;
  records: number;
  before_share: number | null;
  drift: number | null;
}

export interface Coverage {
  run_id: string;
  before_run_id: string | null;
  records: number;
  of: number;
  sampled: boolean;
  complete: boolean;
  fields: FieldCoverage[];
  command?: string;
}

export interface Worker {
  worker: string;
  node: string;
  pid: number;
  version: string;
  code_version: string | null;
  state: WorkerState;
  alive: boolean;
  started_at: string;
  silent_seconds: number;
  lease_seconds: number;
  leased: number;
  running: number;
  unstored: number;
  scope: { scraper: string | null; run_ids: string[]; stages: string[]; partitions: string[]; steal: boolean };
  report_seconds: number | null;
  items: { run_id: string; item_id: number; name: string; seconds: number }[];
  trouble: string | null;
  rate_per_minute: number | null;
}

export interface NodeRow {
  node: string;
  workers: number;
  live: number;
  draining: number;
  /** Silent for longer than their lease; in frames. */
  lost?: number;
  leased: number;
  /** In frames. */
  running?: number;
  versions: string[];
  started_at?: string;
}

/** The topic `fleet`: what frames tell of nodes and workers. */
export interface FleetFrame {
  workers: { live: number; draining: number; lost: number; nodes: number };
  nodes: NodeRow[];
  by_worker: Record<string, Pick<Worker, "node" | "state" | "alive" | "leased" | "running" | "trouble"> & { heartbeat_at: string }>;
  more: boolean;
}

export interface Pool {
  pool_id: string;
  scraper: string;
  run_id: string | null;
  node: string;
  pid: number | null;
  state: "running" | "stopping" | "gone" | "ended";
  workers: number;
  wanted: number | null;
  started_at: string;
  why?: string;
  by_this_server: boolean;
}

export interface HostHealth {
  host: string;
  succeeded: number;
  blocked: number;
  blocks_in_row: number;
  blocked_seconds: number;
  error: string;
}

export interface Exit {
  pool: string;
  exit: string;
  kind: PoolKind;
  label: string;
  state: ExitState;
  why: string;
  by: string;
  succeeded: number;
  failed: number;
  failures_in_row: number;
  error: string;
  used_seconds: number | null;
  listed: boolean;
  hosts: HostHealth[];
  budgets: Budget[];
  seconds_left: number | null;
}

export interface ExitMatrix {
  pool: string;
  hosts: string[];
  exits: {
    exit: string;
    label: string;
    state: ExitState;
    cells: { host: string; state: string; blocks: number; succeeded?: number; until: string | number | null }[];
  }[];
  complete: boolean;
}

export interface CollectionMember {
  member: string;
  group: string | null;
  status: string;
  reason: string;
  run_id: string | null;
  done: number;
  dead: number;
  skipped: number;
  records: number;
  seconds: number | null;
  log: string | null;
}

export interface CollectionGroup {
  group: string;
  status: string;
  exit_code: number;
  total: number;
  success: number;
  warnings: number;
  failed: number;
  not_run: number;
  success_rate: number | null;
  seconds: number;
}

export interface Collection {
  collection: string;
  run: Run;
  command: string;
}

export interface CollectionDetail extends Collection {
  success: number;
  warnings: number;
  failed: number;
  not_run: number;
  success_rate: number | null;
  groups: CollectionGroup[];
  members: CollectionMember[];
  members_complete: boolean;
}

export interface ScheduleSlot {
  slot: string;
  at: string;
  manual: boolean;
  state: string;
  run_id: string | null;
  node: string | null;
  why: string | null;
  finished_at: string | null;
}

export interface Schedule {
  schedule: string;
  cron: string | null;
  every: number | null;
  timezone: string;
  overlap: string;
  missed: string;
  seen: boolean;
  next: string[];
  slots: ScheduleSlot[];
  command: string;
}

export interface AuditEvent {
  event_id: number;
  at: string;
  run_id: string | null;
  actor: string;
  action: string;
  subject: string;
  detail: Record<string, Json>;
}

export interface RunFigures extends Run {
  minutes: number;
  rate_per_minute: number | null;
  ok_percent: number | null;
  deaths: Record<string, number>;
  deaths_complete: boolean;
}

/** Two runs side by side, the earlier one first. */
export interface Comparison {
  runs: [RunFigures, RunFigures];
  command?: string;
}

/** What a write answers with `?preview=true`: nothing was changed. */
export interface Preview {
  preview: true;
  items: number | null;
  items_is_at_least: boolean;
  text: string;
  command: string;
}

/** What a write answers. `complete`: false when it goes on in the background. */
export interface Done {
  text: string;
  items: number | null;
  command: string;
  complete: boolean;
}

export interface ItemFilter {
  ids?: number[];
  states?: ItemState[];
  stage?: string;
  partition?: string;
  lane?: string;
  outcome?: string;
  error?: string;
  failure?: string;
  text?: string;
}

export interface LiveFrame {
  cursor: string;
  at: string;
  snapshot: boolean;
  /** By topic: the fields that changed, a list of new events, or null when the subject does not exist. */
  changes: Record<string, Record<string, unknown> | unknown[] | null>;
}

export interface LedgerState {
  ok: boolean;
  text: string;
  since?: string | null;
}
