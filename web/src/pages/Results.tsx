import { useState } from "preact/hooks";
import { apiPath, apiUrl, withQuery } from "../api/client";
import { useApi } from "../api/query";
import type { Coverage, FieldCoverage, Json, Page, Result, RunDetail } from "../api/types";
import { href, setQuery, useLocation } from "../router/router";
import type { Params } from "../routes";
import {
  Badge, Button, Card, Choice, type Column, CopyCommand, Dialog, Empty, ErrorNote, ExternalUrl, format, Icon, JsonText, PageHead,
  Pager, Placeholder, SearchField, Table,
} from "../ui";
import { fieldNames, fieldText } from "./values";
import "./operations.css";

/** What a run has found: samples, how well fields are filled, what changed since the run before, and files of it. */
export default function Results({ params }: { params: Params }) {
  const run = params.run ?? "latest";
  const { query } = useLocation();
  const text = query.get("text") ?? "";
  const stage = query.get("stage") ?? "";
  const detail = useApi<RunDetail>(apiPath("runs", run), { every: 10 });
  const results = useApi<Page<Result>>(withQuery(apiPath("runs", run, "results"), { stage, text, cursor: query.get("cursor"), limit: 25 }), { every: 10, keep: true });
  const coverage = useApi<Coverage>(withQuery(apiPath("runs", run, "results", "coverage"), { stage }), { every: 30, keep: true });
  const stages = stageNames(detail.data);
  // Both parts appear at once, so that none moves the other.
  const loading = (coverage.data === null && !coverage.error) || (results.data === null && !results.error) || (detail.data === null && !detail.error);
  const head = (
    <PageHead title="Results" actions={<Export run={run} />}>
      {detail.data ? <><span class="num">{format.count(detail.data.records)}</span> records of <span class="strong">{detail.data.scraper}</span></> : "Records of the run"}
    </PageHead>
  );
  if (loading) return <div class="stack">{head}<Placeholder height={640} label="Loading records" /></div>;
  return (
    <div class="stack">
      {head}
      <CoverageCard coverage={coverage.data} error={coverage.error} reload={coverage.reload} run={run} />
      <Card
        flush title="What do records look like?"
        actions={stages.length > 1 ? <Choice label="Stage" value={stage} options={[["", "All stages"], ...stages.map((name) => [name, name] as const)]} onChange={(value) => setQuery({ stage: value, cursor: null })} /> : undefined}
      >
        <div class="card-filter row">
          <div class="grow"><SearchField label="Search records" placeholder="Search records: a word of any field" value={text} onChange={(value) => setQuery({ text: value, cursor: null })} /></div>
          <CopyCommand inline command={results.data?.command || format.command("results", "sample", run)} />
        </div>
        {results.error && <ErrorNote error={results.error} stale={results.data !== null} onRetry={results.reload} />}
        {results.data === null ? (
          !results.error && <Placeholder height={320} label="Loading records" />
        ) : (
          <>
            <Records rows={results.data.rows} run={run} stale={results.stale} filtered={text !== "" || stage !== ""} more={results.data.cursor !== null} />
            <Pager cursor={results.data.cursor} shown={results.data.rows.length} />
          </>
        )}
      </Card>
    </div>
  );
}

function stageNames(run: RunDetail | null): string[] {
  if (!run) return [];
  return Array.isArray(run.stages) ? run.stages.map(String) : Object.keys(run.stages);
}

function Export({ run }: { run: string }) {
  const [open, setOpen] = useState(false);
  const address = (kind: string): string => apiUrl(withQuery(apiPath("runs", run, "results", "export"), { format: kind }));
  return (
    <>
      <Button icon="drain" onClick={() => setOpen(true)}>Export</Button>
      {open && (
        <Dialog title="Export the records" onClose={() => setOpen(false)}>
          <div class="dialog-body stack">
            <p class="muted">The file is written while it is read: a large run does not need memory. What is stored later is not in it.</p>
            <div class="row wrap">
              <a class="button primary" href={address("jsonl")} download data-native>JSON Lines</a>
              <a class="button" href={address("csv")} download data-native>CSV</a>
              <a class="button" href={address("json")} download data-native>JSON</a>
            </div>
            <p class="small muted">More formats, compressed files and only what is new since the last time:</p>
            <CopyCommand command={format.command("export", run, ["-o", "records.jsonl"])} />
          </div>
        </Dialog>
      )}
    </>
  );
}

const MOST_COLUMNS = 6;
const MOST_LABEL = 24;

function Records({ rows, run, stale, filtered, more }: { rows: Result[]; run: string; stale: boolean; filtered: boolean; more: boolean }) {
  const [open, setOpen] = useState<Result | null>(null);
  const names = fieldNames(rows.map((row) => row.record), MOST_COLUMNS);
  const columns: Column<Result>[] = [
    { key: "item", head: "Item", width: "90px", cell: (row) => <a class="num" href={href("runs", run, "items", row.item_id)}>{row.item_id}</a> },
    ...names.map((name, index): Column<Result> => ({
      key: `field ${name}`,
      head: <span title={name}>{name}</span>,
      label: name.length > MOST_LABEL ? `${name.slice(0, MOST_LABEL)}…` : name,
      ...(isShort(rows, name) ? { width: "104px" } : {}),
      ...(index > 2 ? { from: 1100 as const } : index > 1 ? { from: 720 as const } : {}),
      cell: (row) => <Cell value={fieldOf(row.record, name)} />,
    })),
    { key: "change", head: "Change", width: "136px", from: 1100, cell: (row) => (row.change ? <Badge tone={row.change === "unchanged" ? "idle" : row.change === "new" ? "ok" : "info"} icon={row.change === "unchanged" ? "ready" : row.change === "new" ? "done" : "retry"}>{row.change}</Badge> : <span class="muted">–</span>) },
    { key: "open", head: <span class="visually-hidden">Actions</span>, width: "92px", end: true, cell: (row) => <Button small kind="quiet" onClick={() => setOpen(row)}>Open</Button> },
  ];
  return (
    <>
      <Table
        label="Records" columns={columns} rows={rows} rowKey={(row) => `${row.item_id}:${row.n}`} stale={stale}
        empty={
          more ? <Empty title="Nothing on this page matches yet." icon="search"><p>The search goes through the records in parts: the next page may have some.</p></Empty>
          : filtered ? <Empty title="No record matches." icon="search" />
          : <Empty title="There are no records yet." icon="results"><p>Records appear as soon as items are done.</p></Empty>
        }
      />
      {open && (
        <Dialog title={`Record ${open.n + 1} of item ${open.item_id}`} wide onClose={() => setOpen(null)}>
          <div class="dialog-body stack">
            <p class="row wrap"><span class="muted small">Stage {open.stage}</span> <ExternalUrl url={open.url} /></p>
            <JsonText value={open.record} label="The record" />
            <CopyCommand command={format.command("items", "show", run, open.item_id)} />
          </div>
        </Dialog>
      )}
    </>
  );
}

function fieldOf(record: Json, name: string): Json | undefined {
  return record !== null && typeof record === "object" && !Array.isArray(record) ? record[name] : undefined;
}

/** Whether all values of a field fit into a narrow column. */
function isShort(rows: Result[], name: string): boolean {
  return name.length <= 10 && rows.every((row) => fieldText(fieldOf(row.record, name) ?? null).length <= 10);
}

/** A value of a record. It is hostile text: it is only ever written as text. */
function Cell({ value }: { value: Json | undefined }) {
  if (value === undefined || value === null || value === "") return <span class="muted">–</span>;
  const text = fieldText(value);
  return <span class={`clip block ${typeof value === "number" ? "num" : ""}`} title={text.length > 24 ? text : undefined}>{text}</span>;
}

function CoverageCard({ coverage, error, reload, run }: { coverage: Coverage | null; error: ReturnType<typeof useApi>["error"]; reload: () => void; run: string }) {
  if (coverage === null) return error ? <ErrorNote error={error} onRetry={reload} /> : <Card title="Which fields are filled?"><Placeholder height={240} label="Loading the fields" /></Card>;
  if (coverage.fields.length === 0) return null;
  const worse = coverage.fields.filter((field) => field.drift !== null && field.drift <= -0.05);
  const answer = coverage.before_run_id === null
    ? "There is no earlier run of this scraper to compare with."
    : worse.length === 0
      ? "No field is filled clearly less often than in the run before."
      : `${worse.map((field) => field.field).slice(0, 3).join(", ")}${worse.length > 3 ? ` and ${worse.length - 3} more` : ""}: filled less often than in the run before.`;
  const columns: Column<FieldCoverage>[] = [
    { key: "field", head: "Field", cell: (field) => <span class="mono clip block" title={field.field}>{field.field}</span> },
    {
      key: "filled", head: "Filled", width: "220px",
      cell: (field) => (
        <span class="row">
          <span class="meter wide-meter" aria-hidden="true">
            <span style={{ width: `${field.filled_share * 100}%` }} />
            {field.before_share !== null && <i style={{ left: `${field.before_share * 100}%` }} />}
          </span>
          <span class="num">{format.percent(field.filled_share)}</span>
        </span>
      ),
    },
    ...(coverage.before_run_id === null ? [] : [{ key: "drift", head: "Since the run before", end: true, width: "170px", cell: (field: FieldCoverage) => <Drift value={field.drift} /> }]),
    { key: "types", head: "Types", width: "150px", from: 720, cell: (field) => <span class="muted">{field.types.join(", ")}</span> },
    { key: "example", head: "Example", from: 1100, cell: (field) => <span class="clip block muted" title={field.example}>{field.example || "–"}</span> },
  ];
  return (
    <Card
      flush title="Which fields are filled?" note={answer}
      actions={<CopyCommand inline command={coverage.command || format.command("results", "coverage", run)} />}
    >
      {error && <ErrorNote error={error} stale onRetry={reload} />}
      <div class="coverage-scroll"><Table label="Fields" columns={columns} rows={coverage.fields} rowKey={(field) => field.field} /></div>
      <div class="pager muted small">
        {coverage.sampled ? `${format.count(coverage.records)} of ${format.count(coverage.of)} records were read, spread over the run.` : `All ${format.count(coverage.records)} records were read.`}
        {coverage.before_run_id && <span> The run before: <a class="mono" href={href("runs", coverage.before_run_id)}>{coverage.before_run_id}</a></span>}
      </div>
    </Card>
  );
}

function Drift({ value }: { value: number | null }) {
  if (value === null) return <span class="muted">new</span>;
  const points = Math.round(value * 1000) / 10;
  if (Math.abs(points) < 0.1) return <span class="muted">same</span>;
  const tone = points <= -5 ? "bad-text" : points < 0 ? "late-text" : "";
  return (
    <span class={`num ${tone}`}>
      <Icon name={points < 0 ? "failures" : "done"} size={12} /> {points > 0 ? "+" : "−"}{Math.abs(points).toFixed(1)} points
    </span>
  );
}
