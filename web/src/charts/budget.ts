// Budgets of calls: how much is left, and when nothing will be.
import type { Budget } from "../api/types";

export type BudgetLevel = "full" | "fine" | "low" | "empty" | "resting";

/** How much is left: `low` below a fifth, or when it will be empty before it is full again. */
export function budgetLevel(budget: Budget): BudgetLevel {
  if (budget.resting) return "resting";
  if (budget.left <= 0) return "empty";
  if (emptiesBeforeReset(budget) || budget.left < budget.capacity * 0.2) return "low";
  return budget.left >= budget.capacity ? "full" : "fine";
}

export function emptiesBeforeReset(budget: Budget): boolean {
  const empty = budget.empty_in_seconds;
  return empty != null && (budget.reset_seconds === null || empty < budget.reset_seconds);
}

/** The share that is left, 0..1. */
export function budgetShare(budget: Budget): number {
  if (budget.capacity <= 0) return budget.left > 0 ? 1 : 0;
  return Math.max(0, Math.min(1, budget.left / budget.capacity));
}
