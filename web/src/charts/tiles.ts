// Where the tiles of a map go: US states on their usual grid, everything else in reading order.
import type { Eta } from "../api/types";

/** A tile of the map: what it stands for, and its figures. */
export interface TileData {
  name: string;
  total: number;
  ended: number;
  dead: number;
  leased: number;
  eta_seconds: Eta;
}

export interface PlacedTile {
  tile: TileData;
  label: string;
  column: number;
  row: number;
}

// Code, name, column and row. Eleven columns, eight rows: neighbours stay neighbours as far as a grid allows.
const US_STATES: [string, string, number, number][] = [
  ["AK", "alaska", 0, 0], ["ME", "maine", 10, 0],
  ["VT", "vermont", 9, 1], ["NH", "new hampshire", 10, 1],
  ["WA", "washington", 0, 2], ["ID", "idaho", 1, 2], ["MT", "montana", 2, 2], ["ND", "north dakota", 3, 2],
  ["MN", "minnesota", 4, 2], ["IL", "illinois", 5, 2], ["WI", "wisconsin", 6, 2], ["MI", "michigan", 7, 2],
  ["NY", "new york", 8, 2], ["RI", "rhode island", 9, 2], ["MA", "massachusetts", 10, 2],
  ["OR", "oregon", 0, 3], ["NV", "nevada", 1, 3], ["WY", "wyoming", 2, 3], ["SD", "south dakota", 3, 3],
  ["IA", "iowa", 4, 3], ["IN", "indiana", 5, 3], ["OH", "ohio", 6, 3], ["PA", "pennsylvania", 7, 3],
  ["NJ", "new jersey", 8, 3], ["CT", "connecticut", 9, 3],
  ["CA", "california", 0, 4], ["UT", "utah", 1, 4], ["CO", "colorado", 2, 4], ["NE", "nebraska", 3, 4],
  ["MO", "missouri", 4, 4], ["KY", "kentucky", 5, 4], ["WV", "west virginia", 6, 4], ["VA", "virginia", 7, 4],
  ["MD", "maryland", 8, 4], ["DE", "delaware", 9, 4],
  ["AZ", "arizona", 1, 5], ["NM", "new mexico", 2, 5], ["KS", "kansas", 3, 5], ["AR", "arkansas", 4, 5],
  ["TN", "tennessee", 5, 5], ["NC", "north carolina", 6, 5], ["SC", "south carolina", 7, 5],
  ["DC", "district of columbia", 8, 5],
  ["OK", "oklahoma", 3, 6], ["LA", "louisiana", 4, 6], ["MS", "mississippi", 5, 6], ["AL", "alabama", 6, 6],
  ["GA", "georgia", 7, 6],
  ["HI", "hawaii", 0, 7], ["TX", "texas", 3, 7], ["FL", "florida", 8, 7],
];

const BY_NAME = new Map<string, { code: string; column: number; row: number }>();
for (const [code, name, column, row] of US_STATES) {
  BY_NAME.set(code.toLowerCase(), { code, column, row });
  BY_NAME.set(name, { code, column, row });
}
const NAMES = new Map(US_STATES.map(([code, name]) => [code, name]));

/** The US state that a partition names: `CA`, `us-ca`, `US_CA`, `California`, `new_york`; null for other names. */
export function usState(partition: string): { code: string; column: number; row: number } | null {
  const plain = partition.trim().toLowerCase().replace(/[_\-\s]+/g, " ");
  return BY_NAME.get(plain) ?? BY_NAME.get(plain.replace(/^(us|usa) /, "")) ?? null;
}

/** Whether partitions are US states: at least four, and three quarters of them. */
export function areUsStates(names: string[]): boolean {
  const found = new Set<string>();
  let matching = 0;
  for (const name of names) {
    const state = usState(name);
    if (state) {
      matching++;
      found.add(state.code);
    }
  }
  return found.size >= 4 && matching >= names.length * 0.75;
}

const CAPITALS = (name: string) => name.replace(/(^|\s)\S/g, (letter) => letter.toUpperCase());

/** The full name of a US state's code, for people. */
export function stateName(code: string): string {
  return CAPITALS(NAMES.get(code) ?? code);
}

/** Adds up the figures of tiles that have the same name. The longest time to the end is that of the sum. */
export function sumTiles(tiles: TileData[]): TileData[] {
  const sums = new Map<string, TileData>();
  for (const tile of tiles) {
    const sum = sums.get(tile.name);
    if (!sum) sums.set(tile.name, { ...tile });
    else {
      sum.total += tile.total;
      sum.ended += tile.ended;
      sum.dead += tile.dead;
      sum.leased += tile.leased;
      sum.eta_seconds = longer(sum.eta_seconds, tile.eta_seconds);
    }
  }
  return [...sums.values()];
}

function longer(a: Eta, b: Eta): Eta {
  const end = (eta: Eta) => (eta === null ? -1 : Array.isArray(eta) ? eta[1] : eta);
  return end(b) > end(a) ? b : a;
}

export interface TileLayout {
  states: PlacedTile[];
  /** Codes of states without a partition, shown as empty tiles so that the map keeps its shape. */
  missing: { code: string; column: number; row: number }[];
  others: TileData[];
}

/** Puts the US states among the tiles on the map if they are most of them; the rest follows in order of their names. */
export function placeTiles(tiles: TileData[]): TileLayout {
  const byName = (a: TileData, b: TileData) => a.name.localeCompare(b.name, undefined, { numeric: true });
  if (!areUsStates(tiles.map((tile) => tile.name))) {
    return { states: [], missing: [], others: [...tiles].sort(byName) };
  }
  const states: PlacedTile[] = [];
  const others: TileData[] = [];
  const taken = new Set<string>();
  for (const tile of tiles) {
    const state = usState(tile.name);
    if (!state || taken.has(state.code)) others.push(tile);
    else {
      taken.add(state.code);
      states.push({ tile, label: state.code, column: state.column, row: state.row });
    }
  }
  states.sort((a, b) => a.row - b.row || a.column - b.column);
  const missing = US_STATES.filter(([code]) => !taken.has(code)).map(([code, , column, row]) => ({ code, column, row }));
  return { states, missing, others: others.sort(byName) };
}

export const MAP_COLUMNS = 11;
export const MAP_ROWS = 8;

/** Five steps of progress, from nothing (0) to all (5); 5 is only reached when everything has ended. */
export function progressStep(tile: TileData): number {
  if (tile.total <= 0 || tile.ended <= 0) return 0;
  if (tile.ended >= tile.total) return 5;
  return 1 + Math.min(3, Math.floor((tile.ended / tile.total) * 4));
}

/** Whether a tile needs a look: at least one in twenty of what has ended is dead. */
export function hasTrouble(tile: TileData): boolean {
  return tile.dead > 0 && tile.dead >= tile.ended * 0.05;
}

/** The tile that an arrow key leads to: the nearest in that direction; the same when there is none. */
export function neighbour(places: { x: number; y: number }[], from: number, key: string): number {
  const here = places[from];
  if (!here) return from;
  const sideways = key === "ArrowRight" || key === "ArrowLeft";
  const sign = key === "ArrowRight" || key === "ArrowDown" ? 1 : key === "ArrowLeft" || key === "ArrowUp" ? -1 : 0;
  let best = from;
  let distance = Infinity;
  places.forEach((there, index) => {
    const along = (sideways ? there.x - here.x : there.y - here.y) * sign;
    const across = Math.abs(sideways ? there.y - here.y : there.x - here.x);
    if (along <= 0 || along + across * 3 >= distance) return;
    distance = along + across * 3;
    best = index;
  });
  return best;
}
