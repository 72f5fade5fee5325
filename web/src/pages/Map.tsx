import { useMemo } from "preact/hooks";
import { apiPath } from "../api/client";
import { useApi } from "../api/query";
import type { Partition, RunStatus } from "../api/types";
import { TileMap } from "../charts/TileMap";
import { longestEta } from "../charts/spans";
import { hasTrouble, sumTiles, type TileData } from "../charts/tiles";
import { go, href, hrefWith, useQueryValue } from "../router/router";
import type { Params } from "../routes";
import { Card, Choice, CopyCommand, Empty, ErrorNote, format, Note, PageHead, Placeholder, Table, type Column } from "../ui";
import { usePages } from "./lists";
import { etaText } from "./pace";
import "./operations.css";

const MOST_TILES = 1000;

/** Partitions of a run as a map: how far is each, which need a look. A click shows the items of one. */
export default function PartitionMap({ params }: { params: Params }) {
  const run = params.run ?? "latest";
  const [stage, setStage] = useQueryValue("stage");
  const listed = usePages<Partition>(apiPath("runs", run, "partitions"), MOST_TILES, 10);
  const stages = useMemo(() => [...new Set((listed.rows ?? []).map((row) => row.stage))], [listed.rows]);
  const rows = useMemo(() => (listed.rows ?? []).filter((row) => stage === "" || row.stage === stage), [listed.rows, stage]);
  const growing = useApi<RunStatus>(apiPath("runs", run), { every: 10 }).data?.growing === true;
  // While new items are found as fast as others end, no end can be told.
  const tiles = useMemo(() => sumTiles(rows.map(asTile)).map((tile) => (growing ? { ...tile, eta_seconds: null } : tile)), [rows, growing]);
  const items = (partition: string, state?: string): string =>
    hrefWith(href("runs", run, "items"), { partition, stage: stage || undefined, state });

  // It has the same place on every way out: drawn anew, its h1 would lose the focus.
  const head = (
    <PageHead
      title="Map"
      actions={
        <>
          {stages.length > 1 && <Choice label="Stage" value={stage} options={[["", "All stages"], ...stages.map((name) => [name, name] as const)]} onChange={setStage} />}
          <CopyCommand inline command={format.command("status", run)} />
        </>
      }
    >
      Partitions of the run, such as states or countries.
    </PageHead>
  );
  if (listed.rows === null) {
    return <div class="stack">{head}{listed.error ? <ErrorNote error={listed.error} onRetry={listed.reload} /> : <Placeholder height={520} label="Loading the map" />}</div>;
  }
  if (tiles.length === 0 || (tiles.length === 1 && tiles[0]!.name === "")) {
    return (
      <div class="stack">
        {head}
        <Card>
          <Empty title="This run has no partitions." icon="map">
            <p>Items get a partition when they are enqueued, such as the state or the country they belong to. Then this page shows how far each one is.</p>
          </Empty>
        </Card>
      </div>
    );
  }
  const ended = tiles.filter((tile) => tile.ended >= tile.total).length;
  const slowest = [...tiles]
    .filter((tile) => hasTrouble(tile) || tile.ended < tile.total)
    .sort((a, b) => Number(hasTrouble(b)) - Number(hasTrouble(a)) || (longestEta(b.eta_seconds) ?? 0) - (longestEta(a.eta_seconds) ?? 0) || b.total - b.ended - (a.total - a.ended))
    .slice(0, 10);
  return (
    <div class="stack">
      {head}
      {listed.error && <ErrorNote error={listed.error} stale onRetry={listed.reload} />}
      <Card>
        <TileMap
          title="How far is each partition?"
          answer={`${format.count(ended)} of ${format.count(tiles.length)} have ended. Click one to see its items.`}
          tiles={tiles}
          onOpen={(name) => go(items(name))}
        />
      </Card>
      {listed.more && <Note tone="info">These are the first {format.count(MOST_TILES)} partitions. <code>{format.command("status", run, "--json")}</code> lists all.</Note>}
      {slowest.length > 0 && (
        <Card flush title="Which partitions need a look?" note="Many dead items first, then those that take longest.">
          <Table label="Partitions" columns={columns(items)} rows={slowest} rowKey={(tile) => tile.name} />
        </Card>
      )}
    </div>
  );
}

function asTile(row: Partition): TileData {
  return { name: row.partition, total: row.total, ended: row.ended, dead: row.dead, leased: row.leased, eta_seconds: row.eta_seconds ?? null };
}

function columns(items: (partition: string, state?: string) => string): Column<TileData>[] {
  return [
    { key: "name", head: "Partition", cell: (tile) => <a href={items(tile.name)}>{tile.name || "(none)"}</a> },
    {
      key: "share", head: "Ended", width: "220px",
      cell: (tile) => (
        <span class="row">
          <span class="meter" aria-hidden="true"><span style={{ width: `${tile.total ? (tile.ended / tile.total) * 100 : 0}%` }} /></span>
          <span class="num">{format.percent(tile.total ? tile.ended / tile.total : 0)}</span>
        </span>
      ),
    },
    { key: "left", head: "Left", end: true, width: "110px", cell: (tile) => <span class="num">{format.count(tile.total - tile.ended)}</span> },
    { key: "dead", head: "Dead", end: true, width: "110px", cell: (tile) => (tile.dead ? <a class="num" href={items(tile.name, "dead")}>{format.count(tile.dead)}</a> : <span class="num muted">0</span>) },
    { key: "eta", head: "Time to the end", end: true, width: "140px", cell: (tile) => <span class="num nowrap">{tile.ended < tile.total ? etaText(tile.eta_seconds) || "–" : <span class="muted">ended</span>}</span> },
  ];
}
