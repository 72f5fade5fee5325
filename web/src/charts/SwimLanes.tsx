import { useMemo, useRef, useState } from "preact/hooks";

import type { TimelineLane } from "../api/types";
import { duration, percent } from "../ui/format";
import { Frame, type Twin } from "./Frame";
import { linear, timeTicks, visibleRows } from "./scale";
import {
  busyShare,
  fittedFrom,
  laneOrder,
  longestEta,
  outcomeTone,
  type PlacedSpan,
  placeSpans,
  rowsOf,
  TONE_SYMBOLS,
} from "./spans";
import { useWidth } from "./theme";
import { clockTime } from "./times";

const LANE_HEIGHT = 40;
const MOST_ROWS = 4;
// The server gives the newest so many attempts of a lane.
const MOST_SPANS = 100;
const VIEW_HEIGHT = LANE_HEIGHT * 14;

/**
 * Lanes over time: a lane that works in order is one chain of attempts, a lane that works several at once has rows. The
 * lane that will finish last is flagged. Only visible lanes are drawn.
 */
export function SwimLanes(props: {
  title: string;
  answer?: string;
  /** Seconds since 1970. */
  from: number;
  to: number;
  lanes: TimelineLane[];
  selected?: string | undefined;
  onOpen: (item: number) => void;
  onLane: (lane: string) => void;
}) {
  const { to } = props;
  const from = useMemo(() => fittedFrom(props.lanes, props.from, to), [props.lanes, props.from, to]);
  const lanes = useMemo(() => laneOrder(props.lanes), [props.lanes]);
  const placed = useMemo(() => lanes.map((lane) => placeSpans(lane.spans, to, MOST_ROWS)), [lanes, to]);
  const track = useRef<HTMLDivElement>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const width = useWidth(track);
  const [scroll, setScroll] = useState(0);
  const [focus, setFocus] = useState<{ lane: number; span: number } | null>(null);
  const x = linear(from, to, width);
  const height = Math.min(VIEW_HEIGHT, lanes.length * LANE_HEIGHT);
  const { first, last } = visibleRows(scroll, height, LANE_HEIGHT, lanes.length);
  // Before the width is known nothing is placed: it would move.
  const ticks = width > 0 ? timeTicks(from, to, Math.max(2, Math.floor(width / 90)), new Date(to * 1000).getTimezoneOffset()) : [];

  const chosen = focus ? placed[focus.lane]?.[focus.span] : undefined;
  const move = (lane: number, span: number) => {
    const row = Math.max(0, Math.min(lanes.length - 1, lane));
    const most = (placed[row]?.length ?? 0) - 1;
    setFocus({ lane: row, span: Math.max(0, Math.min(most, span)) });
    const view = scroller.current;
    if (!view) return;
    if (row * LANE_HEIGHT < view.scrollTop) view.scrollTop = row * LANE_HEIGHT;
    else if ((row + 1) * LANE_HEIGHT > view.scrollTop + height) view.scrollTop = (row + 1) * LANE_HEIGHT - height;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const here = focus ?? { lane: 0, span: Infinity };
    const count = placed[here.lane]?.length ?? 0;
    const at = Math.min(here.span, count - 1);
    if (event.key === "ArrowDown") move(here.lane + (focus ? 1 : 0), nearest(placed[here.lane + 1], chosen));
    else if (event.key === "ArrowUp") move(here.lane - 1, nearest(placed[here.lane - 1], chosen));
    else if (event.key === "ArrowRight") move(here.lane, at + 1);
    else if (event.key === "ArrowLeft") move(here.lane, focus ? at - 1 : at);
    else if (event.key === "Home") move(here.lane, 0);
    else if (event.key === "End") move(here.lane, count - 1);
    else if (event.key === "Enter" && chosen) props.onOpen(chosen.span.item_id);
    else if (event.key === " " && focus) props.onLane(lanes[focus.lane]!.lane);
    else if (event.key === "Escape") setFocus(null);
    else return;
    event.preventDefault();
  };

  const twin = (): Twin => ({
    head: ["Lane", "Works", "Attempts", "Not done", "Busy", "Time to the end", ""],
    rows: lanes.map((lane, i) => [
      lane.lane,
      kindText(lane),
      lane.spans.length,
      lane.spans.filter((span) => span.end !== null && outcomeTone(span.outcome, false) !== "ok").length,
      percent(busyShare(placed[i]!, from, to)),
      hasEnded(lane, placed[i]!) ? "ended" : duration(longestEta(lane.eta_seconds)),
      lane.critical ? "finishes last" : "",
    ]),
  });

  return (
    <Frame title={props.title} answer={props.answer} twin={twin} height={height + 60}>
      <div class="swim">
        <div class="swim-axis" aria-hidden="true">
          <div class="swim-axis-track" ref={track}>
            {ticks.map((at) => (
              <span key={at} class="swim-tick num" style={{ left: `${x(at)}px` }}>
                {clockTime(at, to - from < 600)}
              </span>
            ))}
          </div>
        </div>
        <div
          class="swim-view"
          ref={scroller}
          style={{ height: `${height}px` }}
          tabIndex={0}
          role="group"
          aria-roledescription="timeline"
          aria-label={`${props.title} Arrow keys move between lanes and attempts, Enter opens an item, the space bar shows its lane.`}
          onScroll={(event) => setScroll((event.currentTarget as HTMLElement).scrollTop)}
          onKeyDown={onKeyDown}
          onPointerLeave={() => setFocus(null)}
        >
          <div class="swim-rows" style={{ height: `${lanes.length * LANE_HEIGHT}px` }}>
            {lanes.slice(first, last).map((lane, offset) => {
              const row = first + offset;
              return (
                <LaneRow
                  key={lane.lane}
                  lane={lane}
                  placed={width > 0 ? placed[row]! : []}
                  top={row * LANE_HEIGHT}
                  x={x}
                  ticks={ticks}
                  selected={props.selected === lane.lane}
                  focused={focus?.lane === row ? focus.span : null}
                  onSpan={(span) => setFocus({ lane: row, span })}
                  onOpen={props.onOpen}
                  onLane={props.onLane}
                />
              );
            })}
          </div>
        </div>
        <div class="swim-foot">
          <p class="swim-said" aria-live="polite">
            {chosen && focus ? (
              <SpanText lane={lanes[focus.lane]!} placed={chosen} />
            ) : (
              <span class="muted">Point at an attempt, or use the arrow keys, to see what it was.</span>
            )}
          </p>
          <ul class="swim-key" aria-label="Key">
            <li><span class="span-tone ok" />done</li>
            <li><span class="span-tone run" />running</li>
            <li><span class="span-tone warn" />tried again</li>
            <li><span class="span-tone bad" />dead</li>
            <li><span class="span-tone off" />skipped</li>
            {placed.some((each) => each.length >= MOST_SPANS) ? <li><span class="span-tone earlier" />earlier, not shown</li> : null}
          </ul>
        </div>
      </div>
    </Frame>
  );
}

/** Nothing of it waits or runs: what it would take at its pace is no time that is left. */
function hasEnded(lane: TimelineLane, placed: PlacedSpan[]): boolean {
  return lane.waiting === 0 && !placed.some((one) => one.open);
}

function kindText(lane: TimelineLane): string {
  return lane.ordered ? "in order" : lane.limit === 1 ? "one at a time" : `${lane.limit} at once`;
}

function nearest(placed: PlacedSpan[] | undefined, to: PlacedSpan | undefined): number {
  if (!placed || !to) return Infinity;
  let best = 0;
  placed.forEach((each, i) => {
    if (Math.abs(each.from - to.from) < Math.abs(placed[best]!.from - to.from)) best = i;
  });
  return best;
}

function SpanText({ lane, placed }: { lane: TimelineLane; placed: PlacedSpan }) {
  const { span, from, to, open } = placed;
  return (
    <>
      <strong>{span.key ?? `item ${span.item_id}`}</strong> {open ? "has been running for" : `${span.outcome ?? "ended"} after`}{" "}
      <span class="num">{duration(to - from)}</span>, <span class="num">{clockTime(from, true)}</span>
      {open ? "" : <span class="num">–{clockTime(to, true)}</span>}, lane {lane.lane}
    </>
  );
}

function LaneRow(props: {
  lane: TimelineLane;
  placed: PlacedSpan[];
  top: number;
  x: (at: number) => number;
  ticks: number[];
  selected: boolean;
  focused: number | null;
  onSpan: (span: number) => void;
  onOpen: (item: number) => void;
  onLane: (lane: string) => void;
}) {
  const { lane, placed, x } = props;
  const rows = rowsOf(placed);
  const room = LANE_HEIGHT - 12;
  const each = rows === 1 ? 18 : room / rows;
  const start = (LANE_HEIGHT - each * rows) / 2;
  const classes = ["swim-lane", lane.critical ? "critical" : "", props.selected ? "selected" : ""].join(" ");
  const firstSpan = placed[0];
  const lastSpan = placed[placed.length - 1];
  return (
    <div class={classes} style={{ top: `${props.top}px`, height: `${LANE_HEIGHT}px` }}>
      <button type="button" class="swim-label" tabIndex={-1} onClick={() => props.onLane(lane.lane)} title={lane.lane}>
        <span class="swim-name clip">{lane.lane}</span>
        <span class="swim-kind">
          {lane.critical ? <span class="swim-last">⚑ finishes last</span> : <span>{kindText(lane)}</span>}
          {hasEnded(lane, placed) ? " · ended" : longestEta(lane.eta_seconds) ? <span class="num"> · {duration(longestEta(lane.eta_seconds))} left</span> : null}
        </span>
      </button>
      <div class="swim-track">
        {props.ticks.map((at) => (
          <span key={at} class="swim-grid" style={{ left: `${x(at)}px` }} />
        ))}
        {placed.length >= MOST_SPANS && firstSpan && x(firstSpan.from) > 0 ? (
          <span class="swim-earlier" style={{ width: `${x(firstSpan.from)}px` }} title="Only the newest attempts of a lane are shown." />
        ) : null}
        {lane.ordered && firstSpan && lastSpan ? (
          <span
            class="swim-chain"
            style={{ left: `${Math.max(0, x(firstSpan.from))}px`, width: `${Math.max(0, x(lastSpan.to) - x(firstSpan.from))}px` }}
          />
        ) : null}
        {placed.map((one, i) => {
          const left = Math.max(0, x(one.from));
          const wide = Math.max(3, x(one.to) - left - 1);
          const tone = outcomeTone(one.span.outcome, one.open);
          return (
            <span
              key={`${one.span.item_id} ${one.span.begin}`}
              class={`swim-span ${tone}${props.focused === i ? " focused" : ""}`}
              style={{
                left: `${left}px`,
                width: `${wide}px`,
                top: `${start + one.row * each}px`,
                height: `${each - (rows === 1 ? 0 : 1.5)}px`,
              }}
              onPointerEnter={() => props.onSpan(i)}
              onClick={() => props.onOpen(one.span.item_id)}
            >
              {wide > 16 && each > 12 && tone !== "ok" ? TONE_SYMBOLS[tone] : ""}
            </span>
          );
        })}
      </div>
    </div>
  );
}
