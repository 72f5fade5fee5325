import type { ComponentChildren } from "preact";
import { apiPath, withQuery } from "../api/client";
import { useApi } from "../api/query";
import type { Comparison, Page, Run, RunFigures } from "../api/types";
import { href, useQueryValue } from "../router/router";
import { Card, CopyCommand, ErrorNote, Field, format, PageHead, Placeholder, RunStateBadge, Table, Time } from "../ui";
import "./pages.css";

interface Figure {
  name: string;
  of: (run: RunFigures) => number | null;
  text: (value: number | null) => string;
  change?: (before: number | null, after: number | null) => string;
}

/** Shares differ by points, not by a share of a share. */
function points(before: number | null, after: number | null): string {
  if (before === null || after === null) return "–";
  const size = Math.abs(after - before);
  return size < 0.05 ? "same" : `${after > before ? "+" : "−"}${size.toFixed(1)} points`;
}

const FIGURES: readonly Figure[] = [
  { name: "Items", of: (run) => run.total, text: format.count },
  { name: "Done", of: (run) => run.done, text: format.count },
  { name: "Dead", of: (run) => run.dead, text: format.count },
  { name: "Skipped", of: (run) => run.skipped, text: format.count },
  { name: "Left", of: (run) => run.remaining, text: format.count },
  { name: "Records", of: (run) => run.records, text: format.count },
  { name: "Succeeded", of: (run) => run.ok_percent, text: (value) => (value === null ? "–" : `${value.toFixed(1)}%`), change: points },
  { name: "Items per minute", of: (run) => run.rate_per_minute, text: format.short },
  { name: "Minutes", of: (run) => run.minutes, text: format.short },
];

export default function ComparePage({ params }: { params: Record<string, string> }) {
  const id = params.run ?? "latest";
  const [other, setOther] = useQueryValue("with");
  const read = useApi<Comparison>(withQuery(`runs/${apiPath(id)}/compare`, { with: other }), { every: 30, keep: true });
  const mine = read.data?.runs.find((run) => run.run_id === id) ?? read.data?.runs[1];
  const runs = useApi<Page<Run>>(mine ? withQuery("runs", { scraper: mine.scraper, limit: 50 }) : null, { every: 0 });
  const [before, after] = read.data?.runs ?? [null, null];
  const deaths = before && after ? [...new Set([...Object.keys(before.deaths), ...Object.keys(after.deaths)])] : [];
  const head = (run: RunFigures): ComponentChildren => <a href={href("runs", run.run_id)} class="mono">{run.run_id}</a>;
  return (
    <>
      <PageHead title="Compare two runs" actions={read.data?.command && <CopyCommand command={read.data.command} inline />}>
        {mine?.scraper} <span class="mono">{id}</span>
      </PageHead>
      <div class="stack">
        <div class="filters">
          <Field label="Compare with" value={other} onChange={setOther} options={[["", "the run before"], ...(runs.data?.rows ?? []).filter((run) => run.run_id !== id).map((run) => [run.run_id, run.run_id] as const)]} />
        </div>
        {read.error && <ErrorNote error={read.error} onRetry={read.reload} stale={read.data !== null} />}
        {!before || !after ? (
          !read.error && <Placeholder height={360} />
        ) : (
          <>
            <Card flush>
              <Table label="Figures" rows={[...FIGURES]} rowKey={(row) => row.name} stale={read.stale} columns={[
                { key: "name", head: "Figure", cell: (row) => row.name },
                { key: "before", head: head(before), label: "Before", end: true, width: "24%", cell: (row) => row.text(row.of(before)) },
                { key: "after", head: head(after), label: "After", end: true, width: "24%", cell: (row) => row.text(row.of(after)) },
                { key: "difference", head: "Change", end: true, width: "110px", cell: (row) => <span class="muted">{row.change ? row.change(row.of(before), row.of(after)) : format.difference(row.of(before), row.of(after))}</span> },
              ]} />
              <div class="pager small muted compared"><span class="row">Before: <RunStateBadge state={before.state} /> <Time at={before.created_at} /></span> <span class="row">After: <RunStateBadge state={after.state} /> <Time at={after.created_at} /></span></div>
            </Card>
            <Card title="Why did items die?" flush note={before.deaths_complete && after.deaths_complete ? undefined : "Counted for a part of the dead items."}>
              <Table label="Deaths by kind" rows={deaths} rowKey={(kind) => kind} empty={<p class="pager muted">No item died in either run.</p>} columns={[
                { key: "kind", head: "Kind", cell: (kind) => <span class="wrap-anywhere">{kind}</span> },
                { key: "before", head: head(before), label: "Before", end: true, width: "24%", cell: (kind) => format.count(before.deaths[kind] ?? 0) },
                { key: "after", head: head(after), label: "After", end: true, width: "24%", cell: (kind) => format.count(after.deaths[kind] ?? 0) },
                { key: "difference", head: "Change", end: true, width: "110px", cell: (kind) => <span class="muted">{format.difference(before.deaths[kind] ?? 0, after.deaths[kind] ?? 0)}</span> },
              ]} />
            </Card>
          </>
        )}
      </div>
    </>
  );
}
