import { useApi } from "../api/query";
import type { Schedule, ScheduleSlot } from "../api/types";
import { href } from "../router/router";
import type { Params } from "../routes";
import {
  Badge, Card, type Column, CopyCommand, Empty, ErrorNote, format, Icon, type IconName, Note, PageHead, Placeholder, Table, Time,
  type Tone,
} from "../ui";
import "./operations.css";

const SLOT_LOOK: Record<string, { tone: Tone; icon: IconName }> = {
  done: { tone: "ok", icon: "done" },
  failed: { tone: "bad", icon: "dead" },
  lost: { tone: "bad", icon: "warn" },
  left: { tone: "warn", icon: "warn" },
  interrupted: { tone: "warn", icon: "paused" },
  skipped: { tone: "idle", icon: "skipped" },
  going: { tone: "info", icon: "leased" },
};

/** When scrapers start, and how their last slots ended. */
export default function Schedules(_: { params: Params }) {
  return (
    <div class="stack">
      <PageHead title="Schedules" actions={<CopyCommand inline command={format.command("schedule", "ls")} />}>
        When scrapers start by themselves, and how it went.
      </PageHead>
      <ScheduleList />
    </div>
  );
}

function ScheduleList() {
  const list = useApi<{ rows: Schedule[] }>("schedules", { every: 10 });
  if (list.data === null) return list.error ? <ErrorNote error={list.error} onRetry={list.reload} /> : <Placeholder height={240} label="Loading schedules" />;
  const columns: Column<Schedule>[] = [
    {
      key: "name", head: "Schedule",
      cell: (one) => (
        <span class="block">
          <span class="strong clip block">{one.schedule}</span>
          <span class="small muted mono">{one.cron ?? (one.every === null ? "" : `every ${format.duration(one.every)}`)}</span> <span class="small muted">{one.timezone}</span>
        </span>
      ),
    },
    { key: "next", head: "Next", width: "150px", cell: (one) => (one.next.length > 0 ? <span class="block"><Time at={one.next[0]} mode="ago" /> <span class="small muted block"><Time at={one.next[0]} /></span></span> : <span class="muted">never</span>) },
    { key: "last", head: "Last slots, newest first", width: "26%", cell: (one) => <SlotStrip slots={one.slots} /> },
    { key: "state", head: "Last slot", cell: (one) => <LastSlot schedule={one} /> },
    { key: "copy", head: <span class="visually-hidden">Command</span>, width: "72px", end: true, from: 720, cell: (one) => <CopyCommand inline command={one.command || format.command("schedule", "now", one.schedule)} /> },
  ];
  const idle = list.data.rows.length > 0 && list.data.rows.every((one) => !one.seen && one.slots.length === 0);
  return (
    <>
    {idle && <Note tone="warn"><p><span class="strong">No scheduler runs, so nothing starts by itself.</span> Start one on a machine that stays up:</p><CopyCommand command="shoal schedule start" /></Note>}
    <Card flush title="When does each scraper start?">
      {list.error && <ErrorNote error={list.error} stale onRetry={list.reload} />}
      <Table
        label="Schedules" columns={columns} rows={list.data.rows} rowKey={(one) => one.schedule}
        empty={
          <Empty title="No scraper has a schedule." icon="schedules">
            <p>Add <code>schedule = "0 6 * * *"</code> to a scraper's table in <code>shoal.toml</code>, then start the schedules:</p>
            <CopyCommand command="shoal schedule start" />
          </Empty>
        }
      />
    </Card>
    </>
  );
}

function SlotStrip({ slots }: { slots: ScheduleSlot[] }) {
  if (slots.length === 0) return <span class="muted">none yet</span>;
  return (
    <ul class="slot-strip">
      {slots.slice(0, 10).map((slot) => {
        const look = SLOT_LOOK[slot.state] ?? SLOT_LOOK.skipped!;
        const said = `${new Date(slot.at).toLocaleString(undefined, { hourCycle: "h23" })}: ${slot.state}${slot.manual ? ", asked for by hand" : ""}${slot.why ? `, ${slot.why}` : ""}`;
        const mark = <span class={`slot-mark ${look.tone}`}><Icon name={look.icon} size={12} /><span class="visually-hidden">{said}</span></span>;
        return <li key={slot.slot} data-tip={said}>{slot.run_id ? <a href={href("runs", slot.run_id)}>{mark}</a> : mark}</li>;
      })}
    </ul>
  );
}

function LastSlot({ schedule }: { schedule: Schedule }) {
  const last = schedule.slots[0];
  if (!last) return schedule.seen ? <span class="muted">no slot yet</span> : <Badge tone="warn" icon="warn" tip="No node has run it. Is `shoal schedule start` running?">nobody runs it</Badge>;
  const look = SLOT_LOOK[last.state] ?? SLOT_LOOK.skipped!;
  return (
    <span class="block">
      <span class="row wrap"><Badge tone={look.tone} icon={look.icon}>{last.state}</Badge> <Time at={last.at} mode="ago" /> {last.node && <span class="muted small">on {last.node}</span>}</span>
      {last.why && <span class="small muted wrap-anywhere block">{last.why}</span>}
    </span>
  );
}
