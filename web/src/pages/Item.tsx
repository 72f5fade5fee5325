import { useEffect } from "preact/hooks";
import { apiPath } from "../api/client";
import { useApi } from "../api/query";
import type { Attempt, ItemDetail, PoolView } from "../api/types";
import { Waterfall } from "../charts/Waterfall";
import { href, hrefWith } from "../router/router";
import { useStore } from "../store";
import { Badge, Button, Card, changes, CopyCommand, Empty, ErrorNote, ExternalUrl, Facts, format, Icon, ItemStateBadge, JsonText, ledgerNow, PageHead, Placeholder, Sentence, Since, Table, Time } from "../ui";
import { askItem, askReplay, OPEN_STATES, useRefusal } from "./parts/actions";
import "./pages.css";

export default function ItemPage({ params }: { params: Record<string, string> }) {
  const run = params.run ?? "latest";
  const id = params.item ?? "";
  const changed = useStore(changes);
  const refusal = useRefusal();
  const read = useApi<ItemDetail>(`runs/${apiPath(run)}/items/${apiPath(id)}`, { every: 5 });
  const pools = useApi<{ rows: PoolView[] }>(`runs/${apiPath(run)}/egress`, { every: 0 });
  useEffect(() => {
    if (changed > 0) read.reload();
  }, [changed]);

  const item = read.data;
  if (item === null) {
    return (
      <>
        <PageHead title={`Item ${id}`} />
        {read.error ? <ErrorNote error={read.error} onRetry={read.reload} /> : <Placeholder height={520} />}
      </>
    );
  }
  const open = OPEN_STATES.includes(item.state);
  return (
    <>
      <PageHead
        title={`Item ${item.item_id}`}
        badge={<ItemStateBadge state={item.state} tries={item.tries} />}
        actions={
          <>
            <Button icon="retry" disabledBecause={refusal ?? (open || item.state === "done" ? "Only dead, skipped and cancelled items can be retried." : null)} onClick={() => askItem(item, "retry")}>Retry</Button>
            <Button icon="cancelled" disabledBecause={refusal ?? (open ? null : "The item has ended.")} onClick={() => askItem(item, "cancel")}>Cancel</Button>
            <Button icon="egress" disabledBecause={refusal ?? (open ? "An open item runs anyway; replay is for items that have ended." : null)} onClick={() => askReplay(item, (pools.data?.rows ?? []).map((pool) => pool.pool))}>Replay</Button>
            <CopyCommand command={item.command ?? format.command("items", "show", item.run_id, item.item_id)} inline />
          </>
        }
      >
        <ExternalUrl url={item.url ?? item.key} />
      </PageHead>
      <div class="stack">
        {read.error && <ErrorNote error={read.error} stale />}
        <WhyCard item={item} />
        <Card title="What happened in each attempt?" flush={item.attempts.length > 0}>
          {item.attempts.length === 0
            ? <Empty title={item.state === "leased" ? "The first attempt runs." : "It was not tried yet."} />
            : <Waterfall label="Attempts" begin={null} now={ledgerNow() / 1000} attempts={item.attempts.map((attempt) => ({ ...attempt, egress: attempt.egress ?? null }))} details={(attempt) => <AttemptDetail attempt={attempt as unknown as Attempt} />} />}
        </Card>
        <div class="grid-2">
          <Card title="What was it asked to fetch?">
            <div class="stack">
              <Facts facts={[
                ["Stage", <a href={hrefWith(href("runs", item.run_id, "items"), { stage: item.stage })}>{item.stage}</a>],
                ["Partition", item.partition ? <a href={hrefWith(href("runs", item.run_id, "items"), { partition: item.partition })}>{item.partition}</a> : "–"],
                ["Lane", item.lane ? <a href={hrefWith(href("runs", item.run_id, "lanes"), { text: item.lane })}>{item.lane}</a> : "–"],
                ["Key", <span class="mono">{item.key ?? "–"}</span>],
                ["Tries", `${item.tries} of ${item.max_attempts}, ${item.rescues} rescues`],
                ["Depth", `${item.depth}, priority ${item.priority}`],
                ["Found by", item.parent === null ? "the start" : <a href={href("runs", item.run_id, "items", item.parent)}>item {item.parent}</a>],
                ["Led to", item.children.length > 0 ? `${format.bounded(item.children.length, item.children_is_at_least)} ${item.children.length === 1 ? "item" : "items"}` : open ? "nothing yet" : "no items"],
              ]} />
              {item.payload && Object.keys(item.payload).length > 0 && <JsonText value={item.payload} label="Payload" />}
              {item.request && Object.keys(item.request).length > 0 && <details class="more"><summary>Request</summary><JsonText value={item.request} label="Request" /></details>}
            </div>
          </Card>
          <Card title="What did it give?" note={item.results.length ? `${item.results.length === 20 ? "The first 20" : format.count(item.results.length)} ${item.results.length === 1 ? "record" : "records"}` : undefined}>
            {item.results.length === 0 ? <Empty title={open ? "There are no records yet." : "It gave no record."} /> : (
              <div class="stack tight">
                {item.results.map((result) => (
                  <div key={result.n} class="stack tight">
                    {(result.change || result.record_key != null) && (
                      <p class="row small">{result.change && <Badge tone={result.change === "changed" ? "warn" : result.change === "new" ? "ok" : "idle"} icon={result.change === "new" ? "done" : "info"}>{result.change}</Badge>}{result.record_key != null && <span class="mono muted clip">{JSON.stringify(result.record_key)}</span>}</p>
                    )}
                    <JsonText value={result.record} label={`Record ${result.n}`} />
                  </div>
                ))}
              </div>
            )}
          </Card>
        </div>
        {item.children.length > 0 && (
          <Card flush title="Which items did it lead to?" note={item.children_is_at_least ? `The first ${format.count(item.children.length)}` : undefined}>
            <Table label="Items that it led to" rows={item.children} rowKey={(child) => child.item_id} columns={[
              { key: "name", head: "Item", cell: (child) => <a class="mono clip block" href={href("runs", item.run_id, "items", child.item_id)}>{child.name}</a> },
              { key: "state", head: "State", width: "140px", cell: (child) => <ItemStateBadge state={child.state} /> },
              { key: "stage", head: "Stage", width: "20%", cell: (child) => <span class="clip block">{child.stage}</span> },
            ]} />
          </Card>
        )}
      </div>
    </>
  );
}

const STATE_WORDS: Record<string, string> = { ready: "Ready", waiting: "Waiting", delayed: "Delayed", leased: "With a worker", done: "Done", dead: "Dead", skipped: "Skipped", cancelled: "Cancelled" };

/** One sentence: what it waits for and since when, or how it ended. */
function WhyCard({ item }: { item: ItemDetail }) {
  const [first, ...others] = item.why;
  const ended = { done: "It is done.", dead: item.error ?? "It died.", skipped: "It was skipped.", cancelled: "It was cancelled." } as Record<string, string>;
  const text = first?.text ?? item.waiting_text ?? "";
  const sentence = ended[item.state] ?? (text || (item.state === "leased" ? "A worker runs it." : "It can be claimed now."));
  return (
    <Card>
      <div class="why">
        <Icon name={item.state === "dead" ? "warn" : item.state === "done" ? "done" : "info"} size={18} />
        <div class="grow">
          <p class="why-text wrap-anywhere"><Sentence text={sentence} /></p>
          <p class="small muted">
            {item.outcome && <>Last outcome: {item.outcome}. </>}
            {item.worker && <>With <span class="mono">{item.worker}</span>. </>}
            {STATE_WORDS[item.state] ?? item.state} for <Since at={first?.since ?? item.since} /> (since <Time at={first?.since ?? item.since} mode="full" />).
            {(first?.until ?? item.due_at) && <> Until <Time at={first?.until ?? item.due_at} mode="full" />.</>}
          </p>
          {others.length > 0 && (
            <ul class="reasons small">
              {others.map((reason) => <li key={reason.code + reason.text}>{reason.text}{reason.until && <> Until <Time at={reason.until} />.</>}</li>)}
            </ul>
          )}
        </div>
        <CopyCommand command={format.command("items", "why", item.run_id, item.item_id)} inline />
      </div>
    </Card>
  );
}

function AttemptDetail({ attempt }: { attempt: Attempt }) {
  const detail = attempt.detail;
  if (!detail || Object.keys(detail).length === 0) return null;
  return <details class="more"><summary>Details</summary><JsonText value={detail} label={`Details of attempt ${attempt.epoch}`} /></details>;
}
