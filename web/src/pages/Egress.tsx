import { useMemo } from "preact/hooks";
import { apiPath, mayAct, me, withQuery } from "../api/client";
import { useLive } from "../api/live";
import { useApi } from "../api/query";
import type { Exit, ExitMatrix, ExitState, Page, PoolView } from "../api/types";
import { Gauge } from "../charts/Gauge";
import { Matrix, type MatrixRow } from "../charts/Matrix";
import { StackedBar } from "../charts/StackedBar";
import { setQuery, useLocation } from "../router/router";
import type { Params } from "../routes";
import { useStore } from "../store";
import {
  ask, Badge, Button, Card, Choice, type Column, CopyCommand, Dialog, Empty, ErrorNote, Facts, format, Note, Num, PageHead,
  Pager, Placeholder, Table, type Tone, useNow, type IconName,
} from "../ui";
import "./operations.css";

const KINDS = { proxies: "Proxies", tokens: "API tokens", tor: "Tor circuits" } as const;
const ONE = { proxies: "proxy", tokens: "token", tor: "circuit" } as const;
const LOOK: Record<ExitState, { tone: Tone; icon: IconName }> = {
  good: { tone: "ok", icon: "done" },
  banned: { tone: "bad", icon: "dead" },
  resting: { tone: "late", icon: "paused" },
  trial: { tone: "warn", icon: "help" },
};
const FILLS: Record<ExitState, string> = { good: "fill-done", trial: "fill-waiting", resting: "fill-delayed", banned: "fill-dead" };
const STATES: ExitState[] = ["good", "trial", "resting", "banned"];

/** What requests go out as: pools of proxies, tokens and circuits, their health, their budgets. */
export default function Egress(_: { params: Params }) {
  const { query } = useLocation();
  const frames = useLive<{ pools: PoolView[] }>("egress");
  const pools = useApi<{ rows: PoolView[] }>("egress", { every: 5, live: true });
  const rows = frames?.pools ?? pools.data?.rows ?? [];
  const chosen = rows.find((pool) => pool.pool === query.get("pool")) ?? troubled(rows) ?? rows[0];
  const exit = query.get("exit");
  return (
    <div class="stack">
      <PageHead title="Egress">
        How requests leave: health and budgets, as all workers know them.
      </PageHead>
      {pools.error && <ErrorNote error={pools.error} stale={pools.data !== null} onRetry={pools.reload} />}
      {pools.data === null && !frames ? (
        !pools.error && <Placeholder height={160} label="Loading pools" />
      ) : rows.length === 0 ? (
        <Card>
          <Empty title="No egress is in use." icon="egress">
            <p>Requests leave directly from each worker's machine.</p>
            <p>Add a table <code>[egress.NAME]</code> with proxies, tokens or Tor to <code>shoal.toml</code>; its exits appear here with the first worker.</p>
          </Empty>
        </Card>
      ) : (
        <>
          <div class="pool-cards">
            {rows.map((pool) => (
              <PoolCard key={pool.pool} pool={pool} chosen={pool === chosen} onChoose={() => setQuery({ pool: pool.pool, cursor: null, state: null, exit: null })} />
            ))}
          </div>
          {chosen && <PoolView key={chosen.pool} pool={chosen} />}
          {chosen && exit && <ExitDialog pool={chosen.pool} exit={exit} />}
        </>
      )}
    </div>
  );
}

/** The pool that is shown first: the one with most exits that cannot be used, else proxies. */
function troubled(pools: PoolView[]): PoolView | undefined {
  const out = (pool: PoolView): number => pool.exits - pool.good;
  return [...pools].sort((a, b) => out(b) - out(a) || Number(b.kind === "proxies") - Number(a.kind === "proxies"))[0];
}

function PoolCard({ pool, chosen, onChoose }: { pool: PoolView; chosen: boolean; onChoose: () => void }) {
  const now = useNow(true) / 1000;
  const usable = pool.good + pool.trial;
  return (
    <section class={`pool-card ${chosen ? "chosen" : ""}`}>
      <button type="button" class="pool-choose" aria-pressed={chosen} onClick={onChoose}>
        <span class="strong clip">{pool.pool}</span>
        <span class="muted small">{KINDS[pool.kind] ?? pool.kind} · {format.count(pool.members)} {pool.members === 1 ? "worker" : "workers"}</span>
      </button>
      <p class="pool-usable">
        <span class="num pool-number">{format.count(usable)}</span>
        <span class="muted"> of {format.count(pool.exits)} usable</span>
        {usable === 0 && pool.exits > 0 && <Badge tone="bad" icon="warn">none left</Badge>}
      </p>
      <StackedBar
        label={`Exits of ${pool.pool} by state`}
        parts={STATES.map((state) => ({ key: state, label: state, value: pool[state], color: FILLS[state] }))}
      />
      {pool.first_back !== null && pool.good < pool.exits && <p class="small muted num">The next one is back in {format.duration(pool.first_back)}.</p>}
      {pool.budgets.map((budget) => <Gauge key={budget.resource} budget={budget} now={now} />)}
    </section>
  );
}

function PoolView({ pool }: { pool: PoolView }) {
  const { query } = useLocation();
  const state = query.get("state") ?? "";
  const exits = useApi<Page<Exit>>(withQuery(apiPath("egress", pool.pool), { state, cursor: query.get("cursor"), limit: 25 }), { every: 5, keep: true });
  const matrix = useApi<ExitMatrix>(apiPath("egress", pool.pool, "matrix"), { every: 10 });
  const filter = (value: string): void => setQuery({ state: value || null, cursor: null });
  // The matrix stands above the list: both appear at once.
  if ((matrix.data === null && !matrix.error) || (exits.data === null && !exits.error)) return <Placeholder height={640} label="Loading exits" />;
  return (
    <>
      {matrix.data && matrix.data.exits.length > 0 && matrix.data.hosts.length > 0 && <MatrixCard matrix={matrix.data} kind={pool.kind} />}
      <Card
        flush
        title={pool.kind === "tokens" ? `How much is left of each token of ${pool.pool}?` : `How well does each ${ONE[pool.kind] ?? "exit"} of ${pool.pool} work?`}
        actions={
          <><Choice
            label="State" value={state} onChange={filter}
            options={[["", `All ${format.count(pool.exits)}`], ...STATES.map((each) => [each, `${each} ${format.count(pool[each])}`] as const)]}
          />
          <CopyCommand inline command={exits.data?.command || format.command(pool.kind === "tokens" ? "tokens" : "proxies", "ls", ["--pool", pool.pool])} /></>
        }
      >
        {exits.error && <ErrorNote error={exits.error} stale={exits.data !== null} onRetry={exits.reload} />}
        {exits.data === null ? (
          !exits.error && <Placeholder height={320} label="Loading exits" />
        ) : (
          <>
            <Table
              label={`Exits of ${pool.pool}`} columns={columns(pool.kind)} rows={exits.data.rows} rowKey={(exit) => exit.exit} stale={exits.stale}
              empty={<Empty title={state ? `No ${ONE[pool.kind]} is ${state}.` : "This pool has no exits."} icon="egress" />}
            />
            <Pager cursor={exits.data.cursor} shown={exits.data.rows.length} />
          </>
        )}
      </Card>
    </>
  );
}

function MatrixCard({ matrix, kind }: { matrix: ExitMatrix; kind: PoolView["kind"] }) {
  const now = useNow(false);
  const rows = useMemo((): MatrixRow[] => matrix.exits.map((exit) => {
    const cells = new globalThis.Map(exit.cells.map((cell) => [cell.host, cell]));
    return {
      key: exit.exit,
      label: exit.label,
      state: exit.state,
      cells: matrix.hosts.map((host) => {
        const cell = cells.get(host);
        if (!cell) return null;
        const blocks = `${format.count(cell.blocks)} ${cell.blocks === 1 ? "block" : "blocks"}`;
        const good = cell.succeeded === undefined ? "" : `, ${format.count(cell.succeeded)} pages`;
        if (cell.state === "blocked") return { state: "blocked", text: `kept from it${untilText(cell.until, now)}, ${blocks}${good}` };
        return cell.blocks > 0 ? { state: "watched", text: `used, ${blocks}${good}` } : { state: "good", text: `works${good}` };
      }),
    };
  }), [matrix]);
  const blocked = rows.reduce((sum, row) => sum + row.cells.filter((cell) => cell?.state === "blocked").length, 0);
  return (
    <Card>
      <Matrix
        title={`Which ${KINDS[kind].toLowerCase()} does which host block?`}
        answer={`${blocked === 0 ? "No host keeps any of them out now." : `${format.count(blocked)} pairs are blocked now.`}${matrix.complete ? "" : ` The most blocked ${matrix.exits.length} by ${matrix.hosts.length} are shown.`}`}
        corner={KINDS[kind]}
        columns={matrix.hosts}
        rows={rows}
        onRow={(exit) => setQuery({ exit })}
      />
    </Card>
  );
}

function untilText(until: string | number | null, now: number): string {
  if (until === null) return "";
  const left = typeof until === "number" ? until : (Date.parse(until) - now) / 1000;
  return left > 0 ? ` for ${format.duration(left)}` : "";
}

function ExitBadge({ exit }: { exit: Exit }) {
  const look = LOOK[exit.state] ?? LOOK.trial;
  const tip = [exit.why, exit.by && `by ${exit.by}`].filter(Boolean).join(" · ");
  return <Badge tone={look.tone} icon={look.icon} {...(tip ? { tip } : {})}>{exit.state}</Badge>;
}

function columns(kind: PoolView["kind"]): Column<Exit>[] {
  const tries = (exit: Exit): number => exit.succeeded + exit.failed;
  if (kind === "tokens") return [...tokenColumns(), ...stateColumns()];
  return [
    {
      key: "label", head: KINDS[kind],
      cell: (exit) => <button type="button" class="link-button mono clip" title={exit.label} onClick={() => setQuery({ exit: exit.exit })}>{exit.label}</button>,
    },
    ...stateColumns(),
    {
      key: "ok", head: "Worked", end: true, width: "160px",
      cell: (exit) => (
        <span class="row end-row">
          <span class="meter" aria-hidden="true"><span style={{ width: `${tries(exit) ? (exit.succeeded / tries(exit)) * 100 : 0}%` }} /></span>
          <span class="num">{tries(exit) ? format.percent(exit.succeeded / tries(exit)) : "–"}</span>
        </span>
      ),
    },
    { key: "tries", head: "Requests", end: true, width: "110px", from: 720, cell: (exit) => <Num value={tries(exit)} zero="muted" /> },
    { key: "row", head: "In a row", end: true, width: "90px", from: 1100, cell: (exit) => <Num value={exit.failures_in_row} zero="muted" /> },
    { key: "used", head: "Last used", end: true, width: "120px", from: 1100, cell: (exit) => <span class="num">{exit.used_seconds === null ? "never" : `${format.duration(exit.used_seconds)} ago`}</span> },
    { key: "error", head: "Last error", from: 1100, cell: (exit) => <span class="clip block muted" title={exit.error}>{exit.error || "–"}</span> },
  ];
}

function stateColumns(): Column<Exit>[] {
  return [
    { key: "state", head: "State", width: "120px", cell: (exit) => <ExitBadge exit={exit} /> },
    { key: "left", head: "Back in", width: "120px", cell: (exit) => <span class="num">{untilWords(exit)}</span> },
  ];
}

/** When an exit that is not good can be used again. */
function untilWords(exit: Exit): string {
  if (exit.state === "good") return "–";
  if (exit.seconds_left === null) return "when it is freed";
  return exit.seconds_left > 0 ? format.duration(exit.seconds_left) : "with its next test";
}

/** Tokens are spent, not tried: what is left of each budget, and when it runs out. */
function tokenColumns(): Column<Exit>[] {
  return [
    {
      key: "label", head: "Token", width: "200px",
      cell: (exit) => <button type="button" class="link-button mono clip" title={exit.label} onClick={() => setQuery({ exit: exit.exit })}>{exit.label}</button>,
    },
    { key: "budgets", head: "What is left of its budgets?", wide: true, cell: (exit) => <Budgets exit={exit} /> },
  ];
}

function Budgets({ exit }: { exit: Exit }) {
  const now = useNow(true) / 1000;
  if (exit.budgets.length === 0) return <span class="muted">nobody has said how large they are</span>;
  return <div class="gauges">{exit.budgets.map((budget) => <Gauge key={budget.resource} budget={budget} now={now} />)}</div>;
}

/** One exit: its hosts, its budgets, and what an operator can do with it. */
function ExitDialog({ pool, exit: key }: { pool: string; exit: string }) {
  const who = useStore(me);
  const now = useNow(true) / 1000;
  const path = apiPath("egress", pool, "exits", key);
  const found = useApi<Exit>(path, { every: 3 });
  const exit = found.data;
  const close = (): void => setQuery({ exit: null });
  const refused = mayAct(who) ? null : "Viewers cannot change anything.";
  const act = (verb: "rest" | "ban"): void => {
    close();
    ask({
      title: verb === "rest" ? `Rest ${exit?.label}` : `Ban ${exit?.label}`,
      explain: verb === "rest" ? "It is not used for so long, then as before." : "It is not used for so long; then one request tries it before it is used again.",
      confirm: verb === "rest" ? "Rest" : "Ban",
      danger: verb === "ban",
      fields: [
        { name: "minutes", label: "For how many minutes", value: verb === "rest" ? "30" : "60", type: "number", min: 1, hint: "Empty: until it is freed" },
        ...(verb === "ban" ? [{ name: "why", label: "Why", value: "banned by an operator" }] : []),
      ],
      action: ({ minutes = "", why = "" }) => {
        const seconds = minutes.trim() === "" ? null : Number(minutes) * 60;
        if (seconds !== null && !(seconds > 0)) return null;
        if (verb === "ban" && why.trim() === "") return null;
        return { method: "POST", path: `${path}/${verb}`, body: { seconds, ...(verb === "ban" ? { why } : {}) } };
      },
    });
  };
  const plain = (verb: "free" | "test", title: string, explain: string): void => {
    close();
    ask({
      title,
      explain,
      confirm: verb === "free" ? "Free" : "Test",
      ...(verb === "test" ? { fields: [{ name: "url", label: "Fetch this page through it", value: "", placeholder: "the address of a page", hint: "Empty: only the proxy itself is asked." }] } : {}),
      action: ({ url = "" }) => ({ method: "POST", path: `${path}/${verb}`, body: verb === "test" ? { url: url.trim() || null } : {} }),
    });
  };
  return (
    <Dialog title={exit?.label ?? "Exit"} onClose={close} wide>
      <div class="dialog-body stack">
        {found.error && <ErrorNote error={found.error} stale={exit !== null} onRetry={found.reload} />}
        {exit === null ? (
          !found.error && <Placeholder height={240} label="Loading the exit" />
        ) : (
          <>
            <Facts
              facts={[
                ["State", <ExitBadge exit={exit} />],
                ["Back in", untilWords(exit)],
                ["Worked", <Num value={exit.succeeded} />],
                ["Failed", <span class="num">{format.count(exit.failed)}{exit.failures_in_row ? ` (${format.count(exit.failures_in_row)} in a row)` : ""}</span>],
                ["Last used", exit.used_seconds === null ? "never" : `${format.duration(exit.used_seconds)} ago`],
                ["Key", <span class="mono">{exit.exit}</span>],
              ]}
            />
            {exit.why && <Note tone="warn">{exit.why}{exit.by ? ` (${exit.by})` : ""}</Note>}
            {exit.error && <p class="small muted wrap-anywhere">Last error: {exit.error}</p>}
            {!exit.listed && <Note tone="info">No running pool has it in its list any more.</Note>}
            {exit.budgets.length > 0 && <div class="gauges">{exit.budgets.map((budget) => <Gauge key={budget.resource} budget={budget} now={now} />)}</div>}
            {exit.hosts.length > 0 && (
              <Table
                label="Hosts" rows={exit.hosts} rowKey={(host) => host.host}
                columns={[
                  { key: "host", head: "Host", cell: (host) => <span class="wrap-anywhere">{host.host}</span> },
                  { key: "ok", head: "Pages", end: true, width: "90px", cell: (host) => <Num value={host.succeeded} /> },
                  { key: "blocks", head: "Blocks", end: true, width: "90px", cell: (host) => <Num value={host.blocked} zero="muted" /> },
                  { key: "state", head: "State", width: "180px", cell: (host) => (host.blocked_seconds > 0 ? <Badge tone="bad" icon="dead">{`out for ${format.duration(host.blocked_seconds)}`}</Badge> : host.blocks_in_row > 0 ? <Badge tone="warn" icon="warn">{`${host.blocks_in_row} in a row`}</Badge> : <Badge tone="ok" icon="done">works</Badge>) },
                ]}
              />
            )}
            <CopyCommand command={format.command(exit.kind === "tokens" ? "tokens" : "proxies", "show", exit.exit)} />
            <footer class="dialog-foot">
              {exit.kind !== "tokens" && <Button disabledBecause={refused} onClick={() => plain("test", `Test ${exit.label}`, "The server tries it once, from its own machine.")}>Test</Button>}
              <Button disabledBecause={refused} onClick={() => act("rest")}>Rest</Button>
              <Button kind="danger" disabledBecause={refused} onClick={() => act("ban")}>Ban</Button>
              {exit.state !== "good" && <Button kind="primary" disabledBecause={refused} onClick={() => plain("free", `Free ${exit.label}`, "It is used again at once.")}>Free</Button>}
            </footer>
          </>
        )}
      </div>
    </Dialog>
  );
}
