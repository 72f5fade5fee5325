import { type ComponentChildren, Fragment } from "preact";
import { useMemo } from "preact/hooks";

import { duration } from "../ui/format";
import { attemptSegments, type AttemptTime } from "./attempts";
import "./charts.css";
import { outcomeTone, TONE_SYMBOLS } from "./spans";
import { clockTime, dayAndTime } from "./times";

export interface WaterfallAttempt extends AttemptTime {
  epoch: number;
  worker: string | null;
  outcome: string | null;
  error: string | null;
  egress?: string | null;
}

/**
 * The attempts of an item, one below the other in time: a thin line is a wait, a bar is work. It is a table, so it needs
 * no twin. `begin`: when the item was enqueued, in seconds since 1970.
 */
export function Waterfall(props: {
  label: string;
  attempts: WaterfallAttempt[];
  begin: number | null;
  now: number;
  details?: (attempt: WaterfallAttempt) => ComponentChildren;
}) {
  const { attempts, begin, now } = props;
  const segments = useMemo(() => attemptSegments(attempts, begin, now), [attempts, begin, now]);
  const shortened = segments.some((segment) => segment.shortened);
  return (
    <div class="waterfall-view" role="region" aria-label={`${props.label}, in time`} tabIndex={0}>
      <table class="waterfall" aria-label={props.label}>
        <thead>
          <tr>
            <th scope="col">#</th>
            <th scope="col">Outcome</th>
            <th scope="col" class="waterfall-time">
              Time {shortened ? <span class="muted">(waits drawn shorter)</span> : null}
            </th>
            <th scope="col" class="end">Waited</th>
            <th scope="col" class="end">Worked</th>
            <th scope="col">Worker</th>
            <th scope="col">Egress</th>
          </tr>
        </thead>
        <tbody>
          {attempts.map((attempt, i) => {
            const mine = segments.filter((segment) => segment.attempt === i);
            const wait = mine.find((segment) => segment.kind === "wait");
            const work = mine.find((segment) => segment.kind === "work");
            const tone = outcomeTone(attempt.outcome, attempt.ended_at === null);
            const at = Date.parse(attempt.claimed_at) / 1000;
            return (
              <Fragment key={attempt.epoch}>
                <tr>
                  <td class="num">{i + 1}</td>
                  <td class="nowrap">
                    <span class={`tone-symbol ${tone}`} aria-hidden="true">
                      {TONE_SYMBOLS[tone]}
                    </span>
                    {attempt.ended_at === null ? "running" : attempt.outcome}
                  </td>
                  <td class="waterfall-time" title={`${dayAndTime(at)} your time, ${new Date(at * 1000).toISOString()}`}>
                    <span class="waterfall-track" aria-hidden="true">
                      {wait ? (
                        <span
                          class={wait.shortened ? "waterfall-wait shortened" : "waterfall-wait"}
                          style={{ left: `${wait.left * 100}%`, width: `${wait.width * 100}%` }}
                        />
                      ) : null}
                      {work ? (
                        <span
                          class={`waterfall-work swim-span ${tone}`}
                          style={{ left: `${Math.min(99.4, work.left * 100)}%`, width: `${work.width * 100}%` }}
                        />
                      ) : null}
                    </span>
                    <span class="visually-hidden">{clockTime(at, true)}</span>
                  </td>
                  <td class="num end nowrap">{wait ? duration(wait.seconds) : "–"}</td>
                  <td class="num end nowrap">{work ? duration(work.seconds) : "–"}</td>
                  <td class="clip mono" title={attempt.worker ?? ""}>{attempt.worker ?? "–"}</td>
                  <td class="clip" title={attempt.egress ?? ""}>{attempt.egress ?? "–"}</td>
                </tr>
                {attempt.error || props.details ? (
                  <tr class="waterfall-more">
                    <td />
                    <td colSpan={6}>
                      {attempt.error ? <p class="wrap-anywhere">{attempt.error}</p> : null}
                      {props.details?.(attempt)}
                    </td>
                  </tr>
                ) : null}
              </Fragment>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}
