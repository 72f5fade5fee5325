import { useEffect, useState } from "preact/hooks";
import { ApiError, apiPath, apiUrl, idempotencyKey, perform, withQuery, type Action } from "../api/client";
import { useApi } from "../api/query";
import { StackedBar } from "../charts/StackedBar";
import { setQuery, useLocation } from "../router/router";
import type { Params } from "../routes";
import { useStore } from "../store";
import {
  ask, Badge, Button, Card, changes, Choice, type Column, CopyButton, Dialog, Empty, ErrorNote, ExternalUrl, Field, format, Icon, type IconName,
  Num, PageHead, Pager, Placeholder, Stat, Stats, Table, Time, toast, type Tone,
} from "../ui";
import { useRefusal } from "./parts/actions";
import "./operations.css";

interface Channel {
  channel_id: string;
  url: string;
  name: string;
  total_videos: number;
  pending: number;
  processing: number;
  completed: number;
  failed: number;
  skipped: number;
  reading: boolean;
  error: string | null;
}

type VideoStatus = "pending" | "processing" | "completed" | "failed" | "skipped" | "cancelled";

interface Video {
  video_id: number;
  url: string;
  title: string;
  status: VideoStatus;
  attempts: number;
  last_error: string | null;
  retry_at: string | null;
}

interface Job {
  status: "idle" | "running" | "paused" | "completed" | "failed";
  worker_status: { running: boolean; num_workers: number; active_workers: number; total_processed: number; total_failed: number };
  performance_metrics: { processing_rate_per_hour: number; success_rate: number | null; estimated_completion_time: string | null };
}

interface JobSettings {
  max_workers: number;
  max_retries: number;
  backoff_factor: number;
  output_dir: string;
}

interface Captions {
  title: string;
  language: string;
  auto: boolean;
  content: string;
}

const VIDEO_LOOK: Record<VideoStatus, { tone: Tone; icon: IconName }> = {
  pending: { tone: "idle", icon: "ready" },
  processing: { tone: "info", icon: "leased" },
  completed: { tone: "ok", icon: "done" },
  failed: { tone: "bad", icon: "dead" },
  skipped: { tone: "idle", icon: "skipped" },
  cancelled: { tone: "idle", icon: "cancelled" },
};
const JOB_LOOK: Record<Job["status"], { tone: Tone; icon: IconName }> = {
  idle: { tone: "idle", icon: "ready" },
  running: { tone: "info", icon: "run" },
  paused: { tone: "warn", icon: "paused" },
  completed: { tone: "ok", icon: "done" },
  failed: { tone: "bad", icon: "dead" },
};
const FILTERS = ["", "completed", "failed", "skipped", "pending", "processing"] as const;
const RETRIED: readonly VideoStatus[] = ["failed", "skipped"];

const asError = (caught: unknown): ApiError => (caught instanceof ApiError ? caught : new ApiError(0, "bug", String(caught)));

/** Sends changes one after another, shows what the last one answered, and lets the page read again. */
async function send(...actions: Action[]): Promise<ApiError | null> {
  try {
    for (const action of actions) await perform(action, idempotencyKey());
    return null;
  } catch (caught) {
    return asError(caught);
  } finally {
    changes.set(changes.value + 1);
  }
}

/** Channels are pasted here; their videos are worked on, and captions are read and downloaded. */
export default function Subtitles(_: { params: Params }) {
  const { query } = useLocation();
  const job = useApi<Job>("/jobs", { every: 2 });
  const channels = useApi<{ rows: Channel[]; cursor: string | null }>("/channels", { every: 2 });
  const changed = useStore(changes);
  useEffect(() => {
    if (changed > 0) {
      job.reload();
      channels.reload();
    }
  }, [changed]);
  const chosen = channels.data?.rows.find((each) => each.channel_id === query.get("channel")) ?? channels.data?.rows[0] ?? null;
  const look = JOB_LOOK[job.data?.status ?? "idle"];
  const video = query.get("video");
  return (
    <div class="stack">
      <PageHead
        title="Subtitles"
        badge={job.data && <Badge tone={look.tone} icon={look.icon}>{job.data.status}</Badge>}
        actions={job.data && <Workers job={job.data} />}
      >
        Paste a channel or a playlist: its videos are listed, and the captions of each become text.
      </PageHead>
      {job.error && <ErrorNote error={job.error} onRetry={job.reload} stale={job.data !== null} />}
      <AddChannel job={job.data} />
      {job.data && <Progress job={job.data} channels={channels.data?.rows ?? []} />}
      {channels.data === null ? (
        channels.error ? <ErrorNote error={channels.error} onRetry={channels.reload} /> : <Placeholder height={160} label="Loading channels" />
      ) : (
        <ChannelList channels={channels.data.rows} more={channels.data.cursor !== null} chosen={chosen} />
      )}
      {chosen && <VideoList key={chosen.channel_id} channel={chosen} />}
      <SettingsCard />
      {video !== null && /^\d+$/.test(video) && <CaptionDialog id={video} />}
    </div>
  );
}

function Workers({ job }: { job: Job }) {
  const refusal = useRefusal();
  const press = (path: string) => (): void => {
    void send({ method: "POST", path }).then((error) => error && toast(error.message, "bad"));
  };
  const running = job.worker_status.running;
  return (
    <>
      {job.status === "paused" ? (
        <Button icon="run" kind="primary" disabledBecause={refusal} onClick={press("/jobs/resume")}>Resume</Button>
      ) : running ? (
        <Button icon="paused" disabledBecause={refusal} onClick={press("/jobs/pause")}>Pause</Button>
      ) : (
        <Button icon="run" kind="primary" disabledBecause={refusal} onClick={press("/jobs/start")}>Start workers</Button>
      )}
      {running && <Button icon="close" disabledBecause={refusal} onClick={press("/jobs/stop")}>Stop workers</Button>}
    </>
  );
}

function AddChannel({ job }: { job: Job | null }) {
  const refusal = useRefusal();
  const [url, setUrl] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  const add = async (): Promise<void> => {
    if (refusal || busy || url.trim() === "") return;
    setBusy(true);
    const idle = job !== null && !job.worker_status.running && job.status !== "paused";
    const failed = await send({ method: "POST", path: "/channels", body: { url: url.trim() } }, ...(idle ? [{ method: "POST" as const, path: "/jobs/start" }] : []));
    setBusy(false);
    setError(failed);
    if (failed === null) {
      setUrl("");
      toast("Added. Its videos are being listed.");
    }
  };
  return (
    <Card>
      <form
        class="paste-channel"
        onSubmit={(event) => {
          event.preventDefault();
          void add();
        }}
      >
        <Field
          label="Channel or playlist" value={url} placeholder="Paste its address here" name="channel"
          onChange={(value) => {
            setUrl(value);
            setError(null); // it was said of another address
          }}
          error={error && `${error.message} ${error.hint}`} hint="One that is here already is read again: only new videos are added."
        />
        <Button type="submit" kind="primary" icon="subtitles" disabled={busy} disabledBecause={refusal ?? (url.trim() === "" ? "Paste an address first." : null)}>Add channel</Button>
      </form>
    </Card>
  );
}

function Progress({ job, channels }: { job: Job; channels: Channel[] }) {
  const done = channels.reduce((sum, each) => sum + each.completed + each.failed + each.skipped, 0);
  const total = channels.reduce((sum, each) => sum + each.total_videos, 0);
  const metrics = job.performance_metrics;
  return (
    <Stats>
      <Stat label="Videos done" note={total > 0 ? `of ${format.count(total)}` : undefined}>{format.count(done)}</Stat>
      <Stat label="Active workers" note={`of ${format.count(job.worker_status.num_workers)}`}>{format.count(job.worker_status.active_workers)}</Stat>
      <Stat label="Per hour" tip="All workers together, over the last five minutes at most">{format.count(Math.round(metrics.processing_rate_per_hour))}</Stat>
      <Stat label="Success">{metrics.success_rate === null ? "–" : format.percent(metrics.success_rate)}</Stat>
      <Stat label="Ready in">{(done < total && metrics.estimated_completion_time) || "–"}</Stat>
    </Stats>
  );
}

function ChannelList({ channels, more, chosen }: { channels: Channel[]; more: boolean; chosen: Channel | null }) {
  const refusal = useRefusal();
  const remove = (one: Channel): void =>
    ask({
      title: "Delete the channel", confirm: "Delete", danger: true,
      explain: "Its captions are deleted from the ledger, and what workers do for it is cancelled. Files in the output folder stay.",
      action: () => ({ method: "DELETE", path: `/channels/${apiPath(one.channel_id)}` }),
    });
  const columns: Column<Channel>[] = [
    {
      key: "name", head: "Channel",
      cell: (one) => (
        <span class="two-lines">
          <button type="button" class="link-button clip" aria-pressed={one === chosen} onClick={() => setQuery({ channel: one.channel_id, status: null, cursor: null })}>{one.name}</button>
          <span class="small clip"><ExternalUrl url={one.url} /></span>
        </span>
      ),
    },
    {
      key: "progress", head: "Progress", width: "22%", wide: true,
      cell: (one) =>
        one.error && one.total_videos === 0 ? <span class="bad-text wrap-anywhere">{one.error}</span>
        : one.reading && one.total_videos === 0 ? <Badge tone="info" icon="leased">listing its videos</Badge>
        : (
          <StackedBar label={`Videos of ${one.name}`} legend={false} parts={[
            { key: "completed", label: "completed", value: one.completed, color: "fill-done" },
            { key: "failed", label: "failed", value: one.failed, color: "fill-dead" },
            { key: "skipped", label: "skipped", value: one.skipped, color: "fill-skipped" },
            { key: "processing", label: "processing", value: one.processing, color: "fill-leased" },
            { key: "pending", label: "pending", value: one.pending, color: "fill-ready" },
          ]} />
        ),
    },
    { key: "completed", head: "Completed", end: true, width: "100px", cell: (one) => <Num value={one.completed} zero="muted" /> },
    { key: "failed", head: "Failed", end: true, width: "80px", cell: (one) => <Num value={one.failed} zero="muted" /> },
    { key: "skipped", head: "Skipped", end: true, width: "80px", cell: (one) => <Num value={one.skipped} zero="muted" /> },
    { key: "total", head: "Videos", end: true, width: "80px", cell: (one) => <Num value={one.total_videos} /> },
    {
      key: "actions", head: <span class="visually-hidden">Actions</span>, label: "", end: true, width: "300px", wide: true,
      cell: (one) => (
        <span class="row row-actions">
          <a class="button small-button" href={apiUrl(`/channels/${apiPath(one.channel_id)}/download`)} download aria-label={`Download the captions of ${one.name} as .zip`}><Icon name="drain" /><span>.zip</span></a>
          <Button small icon="retry" disabledBecause={refusal} tip="Look for new videos" onClick={() => void send({ method: "POST", path: "/channels", body: { url: one.url } }).then((error) => toast(error?.message ?? "It is read again; new videos are added.", error ? "bad" : "ok"))}>Read again</Button>
          <Button small icon="close" disabledBecause={refusal} onClick={() => remove(one)}>Delete</Button>
        </span>
      ),
    },
  ];
  return (
    <Card flush title="Channels">
      <Table
        label="Channels" columns={columns} rows={channels} rowKey={(one) => one.channel_id} rowClass={(one) => (one === chosen ? "selected" : "")}
        empty={<Empty title="There is no channel yet." icon="subtitles"><p>Paste the address of one above.</p></Empty>}
      />
      {more && <p class="note">These are the first {channels.length} channels. GET /channels?cursor=... lists the others.</p>}
    </Card>
  );
}

function VideoList({ channel }: { channel: Channel }) {
  const { query } = useLocation();
  const refusal = useRefusal();
  const status = query.get("status") ?? "";
  const videos = useApi<{ rows: Video[]; cursor: string | null }>(
    withQuery("/videos", { channel: channel.channel_id, status, cursor: query.get("cursor"), limit: 25 }), { every: 3, keep: true },
  );
  const changed = useStore(changes);
  useEffect(() => {
    if (changed > 0) videos.reload();
  }, [changed]);
  const columns: Column<Video>[] = [
    {
      key: "title", head: "Video",
      cell: (one) =>
        one.status === "completed"
          ? <button type="button" class="link-button clip" onClick={() => setQuery({ video: String(one.video_id) })}>{one.title}</button>
          : <span class="clip block">{one.title}</span>,
    },
    { key: "status", head: "Status", width: "130px", cell: (one) => <Badge tone={VIDEO_LOOK[one.status].tone} icon={VIDEO_LOOK[one.status].icon}>{one.status}</Badge> },
    { key: "attempts", head: "Attempts", end: true, width: "90px", cell: (one) => <Num value={one.attempts} zero="muted" /> },
    {
      key: "error", head: "Why", from: 720, width: "30%",
      cell: (one) => (one.last_error === null ? <span class="muted">–</span> : <span class="wrap-anywhere clip-2">{one.last_error}{one.retry_at && <> (again <Time at={one.retry_at} mode="ago" />)</>}</span>),
    },
    {
      key: "actions", head: <span class="visually-hidden">Actions</span>, label: "", end: true, width: "116px",
      cell: (one) =>
        one.status === "completed" ? <a class="button small-button" href={apiUrl(`/subtitles/${one.video_id}/download`)} download aria-label={`Download the captions of ${one.title} as .txt`}><Icon name="drain" /><span>.txt</span></a>
        : RETRIED.includes(one.status) ? <Button small icon="retry" disabledBecause={refusal} onClick={() => ask({ title: "Retry the video", confirm: "Retry", action: () => ({ method: "POST", path: `/videos/${one.video_id}/retry` }) })}>Retry</Button>
        : null,
    },
  ];
  return (
    <Card flush title={`Videos of ${channel.name}`}>
      <div class="card-filter filters">
        <Choice label="Status" value={status} options={FILTERS.map((each) => [each, each || "all"] as const)} onChange={(value) => setQuery({ status: value, cursor: null })} />
      </div>
      {videos.error && <ErrorNote error={videos.error} onRetry={videos.reload} stale={videos.data !== null} />}
      {videos.data === null ? (
        !videos.error && <Placeholder height={320} label="Loading videos" />
      ) : (
        <>
          <Table label="Videos" columns={columns} rows={videos.data.rows} rowKey={(one) => one.video_id} stale={videos.stale} empty={<Empty title={status === "" ? "Its videos are not listed yet." : `No video is ${status}.`} icon="items" />} />
          <Pager cursor={videos.data.cursor} shown={videos.data.rows.length} />
        </>
      )}
    </Card>
  );
}

/** The captions are text of a site: they are drawn as text. */
function CaptionDialog({ id }: { id: string }) {
  const captions = useApi<Captions>(`/subtitles/${apiPath(id)}`, { every: 0 });
  const found = captions.data;
  return (
    <Dialog title={found?.title ?? "Captions"} onClose={() => setQuery({ video: null })} wide>
      <div class="dialog-body stack">
        {captions.error && <ErrorNote error={captions.error} onRetry={captions.reload} />}
        {found === null ? (
          !captions.error && <Placeholder height={320} label="Loading the captions" />
        ) : (
          <>
            <div class="row wrap">
              <Badge tone="idle" icon="subtitles">{found.language}{found.auto ? ", made by a machine" : ""}</Badge>
              <span class="grow" />
              <CopyButton text={found.content} label="Copy the captions" />
              <a class="button small-button" href={apiUrl(`/subtitles/${apiPath(id)}/download`)} download><Icon name="drain" /><span>Download .txt</span></a>
            </div>
            <pre class="caption-text" tabIndex={0} role="region" aria-label="Captions" lang={found.language}>{found.content}</pre>
          </>
        )}
      </div>
    </Dialog>
  );
}

interface NumberSetting {
  name: "max_workers" | "max_retries" | "backoff_factor";
  label: string;
  hint: string;
  low: number;
  high: number;
  whole: boolean;
}

const SETTINGS: readonly NumberSetting[] = [
  { name: "max_workers", label: "Workers", hint: "1 to 20; a running pool grows or shrinks at once", low: 1, high: 20, whole: true },
  { name: "max_retries", label: "Retries", hint: "0 to 10, after the first try", low: 0, high: 10, whole: true },
  { name: "backoff_factor", label: "Backoff factor", hint: "1 to 10: 2 waits 2, 4, 8 ... seconds", low: 1, high: 10, whole: false },
];

/** What is wrong with a number as it was typed or configured; null when nothing is. */
function refused(value: string, { low, high, whole }: NumberSetting): string | null {
  const number = Number(value);
  const right = value.trim() !== "" && Number.isFinite(number) && (!whole || Number.isInteger(number)) && number >= low && number <= high;
  return right ? null : `It must be a ${whole ? "whole number" : "number"} from ${low} to ${high}.`;
}

function SettingsCard() {
  const refusal = useRefusal();
  const settings = useApi<JobSettings>("/settings", { every: 30 });
  const [typed, setTyped] = useState<Record<string, string>>({});
  const [error, setError] = useState<ApiError | null>(null);
  if (settings.data === null) return settings.error ? <ErrorNote error={settings.error} onRetry={settings.reload} /> : <Placeholder height={140} label="Loading the settings" />;
  const data = settings.data;
  const given = Object.entries(typed).filter(([name, value]) => value !== String(data[name as keyof JobSettings]));
  const wrong = SETTINGS.some((each) => refused(typed[each.name] ?? String(each.low), each) !== null);
  const save = async (): Promise<void> => {
    const failed = await send({ method: "POST", path: "/settings", body: Object.fromEntries(given.map(([name, value]) => [name, Number(value)])) });
    setError(failed);
    if (failed === null) {
      setTyped({});
      settings.reload();
      toast("Changed. Workers follow.");
    }
  };
  return (
    <Card title="Settings" note={<>Files go to <span class="mono">{data.output_dir}</span>.</>}>
      <form
        class="job-settings"
        onSubmit={(event) => {
          event.preventDefault();
          if (!refusal && !wrong && given.length > 0) void save();
        }}
      >
        {SETTINGS.map((each) => {
          const value = typed[each.name] ?? String(data[each.name]);
          return (
            <Field
              key={each.name} label={each.label} hint={each.hint} value={value} error={refused(value, each)}
              onChange={(now) => setTyped((before) => ({ ...before, [each.name]: now }))}
            />
          );
        })}
        <Button type="submit" disabledBecause={refusal ?? (given.length === 0 ? "Nothing was changed." : wrong ? "Correct the numbers first." : null)}>Save</Button>
      </form>
      {error && <ErrorNote error={error} />}
    </Card>
  );
}
