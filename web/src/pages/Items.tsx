import { useEffect } from "preact/hooks";
import { apiPath, withQuery } from "../api/client";
import { useApi } from "../api/query";
import { ITEM_STATES, type Item, type ItemPage, type ItemState, type RunDetail } from "../api/types";
import { href, setQuery, useLocation } from "../router/router";
import { useStore } from "../store";
import { Button, Card, changes, Choice, CopyCommand, Empty, ErrorNote, Field, format, Icon, ItemStateBadge, PageHead, Pager, Placeholder, SearchField, Table, Time, type Column } from "../ui";
import { askItems, idleText, OPEN_STATES, useRefusal } from "./parts/actions";
import { filterFrom, filterText, FILTERS } from "./parts/filters";
import "./pages.css";

export default function ItemsPage({ params }: { params: Record<string, string> }) {
  const id = params.run ?? "latest";
  const { query } = useLocation();
  const filter = filterFrom(query);
  const refusal = useRefusal();
  const changed = useStore(changes);
  const run = useApi<RunDetail>(`runs/${apiPath(id)}`, { every: 15 });
  const path = withQuery(`runs/${apiPath(id)}/items`, { ...Object.fromEntries(FILTERS.map((name) => [name, query.get(name)])), cursor: query.get("cursor") });
  const read = useApi<ItemPage>(path, { every: 10, keep: true });
  useEffect(() => {
    if (changed > 0) read.reload();
  }, [changed]);

  const state = query.get("state") ?? "";
  const set = (name: string) => (value: string): void => setQuery({ [name]: value, cursor: null }, { replace: name !== "state" });
  const filtered = FILTERS.some((name) => name !== "state" && query.get(name));
  const stages = run.data?.stages ?? [];
  const data = read.data;
  const matching = data === null ? null : data.count;
  const what = filterText(filter);
  const runId = run.data?.run_id ?? id;

  // Counts of the chips are those of the run; with another filter they would not follow it, so they are left out.
  const chips = ["", ...ITEM_STATES].map((each): readonly [string, string] => {
    if (each === "") return ["", "All"];
    const number = run.data?.[each as ItemState];
    return [each, filtered || number === undefined ? each : `${each} ${format.short(number)}`];
  });

  const columns: Column<Item>[] = [
    {
      key: "item", head: "Item",
      cell: (item) => (
        <span class="two-lines">
          <a class="clip mono" href={href("runs", runId, "items", item.item_id)}>{item.url ?? item.key ?? `item ${item.item_id}`}</a>
          <span class="small muted clip">{item.error ? <><Icon name="warn" size={12} /> {item.error}</> : item.waiting_text || (item.key && item.key !== item.url ? item.key : "")}</span>
        </span>
      ),
    },
    { key: "state", head: "State", width: "140px", cell: (item) => <ItemStateBadge state={item.state} tries={item.tries} /> },
    { key: "stage", head: "Stage", width: "110px", from: 720, cell: (item) => <span class="clip block">{item.stage}</span> },
    { key: "partition", head: "Partition", width: "96px", from: 1100, cell: (item) => <span class="clip block">{item.partition || "–"}</span> },
    { key: "lane", head: "Lane", width: "160px", from: 1100, cell: (item) => <span class="clip block">{item.lane ?? "–"}</span> },
    { key: "tries", head: "Tries", end: true, width: "76px", cell: (item) => `${item.tries} / ${item.max_attempts}` },
    { key: "since", head: "Since", end: true, width: "104px", cell: (item) => <Time at={item.since} mode="ago" /> },
    { key: "number", head: "No.", end: true, width: "84px", from: 1100, cell: (item) => <span class="muted num">{item.item_id}</span> },
  ];

  const retryable = !filter.states || filter.states.some((each) => each === "dead" || each === "skipped" || each === "cancelled");
  const cancellable = !filter.states || filter.states.some((each) => OPEN_STATES.includes(each));
  return (
    <>
      <PageHead
        title="Items"
        badge={<span class="count-badge num" role="status" aria-label="Items that match">{matching === null ? "–" : format.bounded(matching, data?.count_is_at_least)}</span>}
        actions={
          <>
            <Button icon="retry" disabledBecause={refusal ?? (retryable ? null : "Only dead, skipped and cancelled items can be retried.")} onClick={() => askItems(runId, "retry", filter.states ? filter : { ...filter, states: ["dead"] }, filter.states ? what : filterText({ ...filter, states: ["dead"] }), idleText(run.data))}>
              Retry
            </Button>
            <Button icon="cancelled" disabledBecause={refusal ?? (cancellable ? null : "Only open items can be cancelled.")} onClick={() => askItems(runId, "cancel", filter, what, null)}>Cancel</Button>
            <CopyCommand command={data?.command ?? format.command("items", "ls", runId, ["--state", state])} inline />
          </>
        }
      >
        {run.data?.scraper ?? ""} <span class="mono">{runId}</span>
      </PageHead>
      <div class="stack">
        <Choice label="State" value={state} options={chips} onChange={set("state")} />
        <div class="filters">
          <div class="wide"><SearchField label="Search" placeholder="URL or key, or a part of it" value={query.get("text") ?? ""} onChange={set("text")} name="text" /></div>
          <Field label="Stage" hideLabel value={query.get("stage") ?? ""} onChange={set("stage")} options={[["", "Any stage"], ...withCurrent(stages, query.get("stage"))]} />
          <SearchField label="Partition" value={query.get("partition") ?? ""} onChange={set("partition")} name="partition" />
          <SearchField label="Lane" value={query.get("lane") ?? ""} onChange={set("lane")} name="lane" />
          <SearchField label="Outcome" value={query.get("outcome") ?? ""} onChange={set("outcome")} name="outcome" />
          <SearchField label="Error" placeholder="Part of the error" value={query.get("error") ?? ""} onChange={set("error")} name="error" />
          {query.get("failure") && <Button small icon="close" onClick={() => setQuery({ failure: null, cursor: null })}>Only one group of failures</Button>}
          {(filtered || state) && <Button small kind="quiet" onClick={() => setQuery(Object.fromEntries([...FILTERS, "cursor"].map((name) => [name, null])))}>Clear</Button>}
        </div>
        {read.error && <ErrorNote error={read.error} onRetry={read.reload} stale={data !== null} />}
        {data === null ? (
          !read.error && <Placeholder height={480} />
        ) : (
          <Card flush>
            <Table label="Items" rows={data.rows} rowKey={(item) => item.item_id} columns={columns} stale={read.stale}
              empty={data.cursor !== null
                ? <Empty title="None on this page; more may follow." />
                : <Empty title="No item matches." icon="search">{(filtered || state) && <p>Take a condition away, or <a href={href("runs", runId, "items")}>show all items</a>.</p>}</Empty>} />
            <Pager cursor={data.cursor} shown={data.rows.length} total={matching === null ? undefined : <>{format.bounded(matching, data.count_is_at_least)} {matching === 1 ? "item matches" : "items match"}, in the order they were enqueued</>} />
          </Card>
        )}
      </div>
    </>
  );
}

/** The stages of the run as choices; the one of the URL is there even if the run does not name it. */
function withCurrent(stages: readonly string[], current: string | null): (readonly [string, string])[] {
  const all = current && !stages.includes(current) ? [...stages, current] : stages;
  return all.map((name) => [name, name] as const);
}

