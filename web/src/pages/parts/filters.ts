/** The filter of the items page: in the URL, in words, and as the body of a change. */
import { ITEM_STATES, type ItemFilter, type ItemState } from "../../api/types";

export const FILTERS = ["state", "stage", "partition", "lane", "outcome", "error", "failure", "text"] as const;

export function filterFrom(query: URLSearchParams): ItemFilter {
  const states = query.getAll("state").filter((each): each is ItemState => (ITEM_STATES as readonly string[]).includes(each));
  const filter: ItemFilter = {};
  if (states.length) filter.states = states;
  for (const name of FILTERS) {
    const value = query.get(name);
    if (name !== "state" && value) filter[name] = value;
  }
  return filter;
}

/** "dead items of stage detail with “503”" */
export function filterText(filter: ItemFilter): string {
  const words = [filter.states?.length ? `${filter.states.join(" and ")} items` : "items"];
  if (filter.failure) words.push("of one group of failures");
  if (filter.stage) words.push(`of stage ${filter.stage}`);
  if (filter.partition) words.push(`of partition ${filter.partition}`);
  if (filter.lane) words.push(`of lane ${filter.lane}`);
  if (filter.outcome) words.push(`that ended as ${filter.outcome}`);
  if (filter.error) words.push(`whose error has “${filter.error}”`);
  if (filter.text) words.push(`with “${filter.text}”`);
  return words.join(" ");
}
