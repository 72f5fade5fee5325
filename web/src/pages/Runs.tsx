import { withQuery } from "../api/client";
import { useApi } from "../api/query";
import type { Page, Run } from "../api/types";
import { href, setQuery, useLocation } from "../router/router";
import { Card, Choice, CopyCommand, Empty, ErrorNote, format, PageHead, Pager, Placeholder, RunStateBadge, SearchField, Table, Time, type Column } from "../ui";
import { StateBar } from "./parts/runs";
import "./pages.css";

const STATES = [["", "All"], ["active", "Active"], ["paused", "Paused"], ["finished", "Finished"], ["cancelled", "Cancelled"]] as const;

const COLUMNS: Column<Run>[] = [
  { key: "run", head: "Run", cell: (run) => <span class="two-lines"><a class="clip" href={href("runs", run.run_id)}>{run.scraper}</a><span class="mono small muted clip">{run.run_id}</span></span> },
  { key: "state", head: "State", width: "120px", cell: (run) => <RunStateBadge state={run.state} /> },
  { key: "bar", head: "Items", wide: true, width: "20%", cell: (run) => <StateBar counts={run} label={`Items of ${run.scraper}`} /> },
  { key: "done", head: "Done", end: true, width: "110px", cell: (run) => format.count(run.done) },
  { key: "left", head: "Left", end: true, width: "110px", cell: (run) => format.count(run.remaining) },
  { key: "dead", head: "Dead", end: true, width: "90px", cell: (run) => (run.dead ? <a href={href("runs", run.run_id, "failures")}>{format.count(run.dead)}</a> : "0") },
  { key: "records", head: "Records", end: true, width: "110px", from: 1100, cell: (run) => format.count(run.records) },
  { key: "created", head: "Began", end: true, width: "150px", cell: (run) => <Time at={run.created_at} /> },
];

export default function RunsPage() {
  const { query } = useLocation();
  const scraper = query.get("scraper") ?? "";
  const state = query.get("state") ?? "";
  const read = useApi<Page<Run>>(withQuery("runs", { scraper, state, cursor: query.get("cursor") }), { keep: true });
  const command = read.data?.command ?? format.command("runs", "ls", ["--scraper", scraper], ["--state", state]);
  return (
    <>
      <PageHead title="Runs" actions={<CopyCommand command={command} inline />}>Every run of this ledger, the newest first.</PageHead>
      <div class="stack">
        <div class="filters">
          <SearchField label="Scraper" placeholder="Scraper, its whole name" value={scraper} onChange={(value) => setQuery({ scraper: value, cursor: null }, { replace: true })} name="scraper" />
          <Choice label="State" value={state} options={STATES} onChange={(value) => setQuery({ state: value, cursor: null })} />
        </div>
        {read.error && <ErrorNote error={read.error} onRetry={read.reload} stale={read.data !== null} />}
        {read.data === null ? (
          !read.error && <Placeholder height={360} />
        ) : (
          <Card flush>
            <Table label="Runs" rows={read.data.rows} rowKey={(run) => run.run_id} columns={COLUMNS} stale={read.stale}
              empty={<Empty title={scraper || state ? "No run matches." : "There are no runs yet."}><CopyCommand command="shoal run SCRAPER" /></Empty>} />
            <Pager cursor={read.data.cursor} shown={read.data.rows.length} />
          </Card>
        )}
      </div>
    </>
  );
}
