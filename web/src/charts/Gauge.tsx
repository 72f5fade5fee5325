import type { Budget } from "../api/types";
import { count, duration } from "../ui/format";
import { budgetLevel, budgetShare, emptiesBeforeReset } from "./budget";
import "./charts.css";
import { clockTime } from "./times";

const WORDS = { full: "full", fine: "in use", low: "low", empty: "empty", resting: "resting" } as const;

/** A budget of calls: what is left, when it runs out at the pace of now, and when it is full again. */
export function Gauge({ budget, now }: { budget: Budget; now: number }) {
  const level = budgetLevel(budget);
  const name = budget.resource || "all calls";
  return (
    <div class={`gauge gauge-${level}`}>
      <div class="gauge-head">
        <span class="gauge-name clip" title={name}>
          {name}
        </span>
        <span class="gauge-level">{level === "low" && emptiesBeforeReset(budget) ? "will run out" : WORDS[level]}</span>
      </div>
      <div
        class="gauge-track"
        role="meter"
        aria-label={`Calls left of ${name}`}
        aria-valuemin={0}
        aria-valuemax={budget.capacity}
        aria-valuenow={Math.max(0, Math.min(budget.left, budget.capacity))}
        aria-valuetext={`${count(budget.left)} of ${count(budget.capacity)} left. ${outlook(budget, now)}`}
      >
        <span class="gauge-fill" style={{ width: `${budgetShare(budget) * 100}%` }} />
      </div>
      <div class="gauge-foot">
        <span class="num">
          <strong>{count(budget.left)}</strong> of {count(budget.capacity)} left
        </span>
        <span class="num gauge-outlook">{outlook(budget, now)}</span>
      </div>
    </div>
  );
}

/** One sentence: when it runs out, or when it is full again. */
export function outlook(budget: Budget, now: number): string {
  const time = (inSeconds: number) => clockTime(now + inSeconds);
  if (budget.resting) {
    return budget.reset_seconds === null ? "The site asked for a pause" : `Pause until ${time(budget.reset_seconds)}`;
  }
  const reset = budget.reset_seconds === null ? "" : `full again ${time(budget.reset_seconds)}`;
  if (budget.left <= 0) return reset ? `Nothing left, ${reset}` : "Nothing left";
  if (emptiesBeforeReset(budget)) {
    const empty = budget.empty_in_seconds!;
    return `Runs out ${time(empty)} (in ${duration(empty)})${reset ? `, ${reset}` : ""}`;
  }
  if (reset) return budget.empty_in_seconds != null ? `Lasts until it is ${reset}` : `Is ${reset}`;
  return "";
}
