import { useMemo, useRef, useState } from "preact/hooks";

import { count, duration, percent } from "../ui/format";
import { Frame, type Twin } from "./Frame";
import { longestEta } from "./spans";
import { hasTrouble, neighbour, placeTiles, progressStep, stateName, type TileData } from "./tiles";

/**
 * Partitions as tiles: US states where they are on the map, other partitions in order of their names. The shade, a bar
 * and the number say how much has ended; a tile with many dead items has a mark.
 */
export function TileMap(props: {
  title: string;
  answer?: string;
  tiles: TileData[];
  selected?: string | undefined;
  onOpen: (name: string) => void;
}) {
  const layout = useMemo(() => placeTiles(props.tiles), [props.tiles]);
  const names = useMemo(() => [...layout.states.map((placed) => placed.tile.name), ...layout.others.map((tile) => tile.name)], [layout]);
  const [at, setAt] = useState(0);
  const host = useRef<HTMLDivElement>(null);
  const reachable = Math.min(at, names.length - 1);

  const onKeyDown = (event: KeyboardEvent) => {
    const buttons = [...(host.current?.querySelectorAll<HTMLElement>("button") ?? [])];
    const here = buttons.indexOf(document.activeElement as HTMLElement);
    if (here < 0) return;
    const places = buttons.map((button) => ({ x: button.offsetLeft, y: button.offsetTop }));
    const next = event.key === "Home" ? 0 : event.key === "End" ? buttons.length - 1 : neighbour(places, here, event.key);
    if (next === here && !event.key.startsWith("Arrow")) return;
    event.preventDefault();
    setAt(next);
    buttons[next]?.focus();
  };

  const twin = (): Twin => ({
    head: ["Partition", "Ended", "Items", "Share", "Dead", "Running", "Time to the end"],
    rows: [...props.tiles]
      .sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }))
      .map((tile) => [
        tile.name,
        count(tile.ended),
        count(tile.total),
        percent(tile.total ? tile.ended / tile.total : 0),
        count(tile.dead),
        count(tile.leased),
        duration(longestEta(tile.eta_seconds)),
      ]),
  });

  return (
    <Frame title={props.title} answer={props.answer} twin={twin}>
      <div class="tiles" ref={host} onKeyDown={onKeyDown}>
      {layout.states.length > 0 ? (
        <div class="tile-map">
          {layout.missing.map((each) => (
            <span
              key={each.code}
              class="tile missing"
              aria-hidden="true"
              style={{ gridColumn: each.column + 1, gridRow: each.row + 1 }}
            >
              {each.code}
            </span>
          ))}
          {layout.states.map((placed, index) => (
            <Tile
              key={placed.tile.name}
              tile={placed.tile}
              label={placed.label}
              name={`${stateName(placed.label)} (${placed.tile.name})`}
              place={{ gridColumn: placed.column + 1, gridRow: placed.row + 1 }}
              reachable={index === reachable}
              selected={props.selected === placed.tile.name}
              onFocus={() => setAt(index)}
              onOpen={props.onOpen}
            />
          ))}
        </div>
      ) : null}
      {layout.others.length > 0 ? (
        <div class="tile-grid">
          {layout.others.map((tile, index) => (
            <Tile
              key={tile.name}
              tile={tile}
              label={tile.name === "" ? "(none)" : tile.name}
              name={tile.name === "" ? "no partition" : tile.name}
              reachable={layout.states.length + index === reachable}
              selected={props.selected === tile.name}
              onFocus={() => setAt(layout.states.length + index)}
              onOpen={props.onOpen}
            />
          ))}
          </div>
        ) : null}
      </div>
      <ul class="tile-key" aria-label="Key">
        {["0%", "1–24%", "25–49%", "50–74%", "75–99%", "✓ all"].map((label, step) => (
          <li key={label}>
            <span class={`tile-sample step-${step}`} />
            {label}
          </li>
        ))}
        <li>
          <span class="tile-trouble">✕</span>at least 5% of the ended are dead
        </li>
      </ul>
    </Frame>
  );
}

function Tile(props: {
  tile: TileData;
  label: string;
  name: string;
  place?: { gridColumn: number; gridRow: number };
  reachable: boolean;
  selected: boolean;
  onFocus?: () => void;
  onOpen: (name: string) => void;
}) {
  const { tile } = props;
  const share = tile.total > 0 ? tile.ended / tile.total : 0;
  const step = progressStep(tile);
  const trouble = hasTrouble(tile);
  const said =
    `${props.name}: ${count(tile.ended)} of ${count(tile.total)} ended (${percent(share)})` +
    (tile.dead ? `, ${count(tile.dead)} dead` : "") +
    (tile.leased ? `, ${count(tile.leased)} running` : "") +
    (tile.eta_seconds !== null && step < 5 ? `, about ${duration(longestEta(tile.eta_seconds))} left` : "");
  return (
    <button
      type="button"
      class={`tile step-${step}${props.selected ? " selected" : ""}`}
      style={props.place}
      tabIndex={props.reachable ? 0 : -1}
      title={said}
      onFocus={props.onFocus}
      onClick={() => props.onOpen(tile.name)}
    >
      <span class="tile-name clip">{props.label}</span>
      {trouble ? <span class="tile-trouble" aria-hidden="true">✕</span> : null}
      <span class="tile-share num" aria-hidden={step === 5 || undefined}>{step === 5 ? "✓" : percent(share)}</span>
      <span class="visually-hidden">{said}</span>
      <span class="tile-bar">
        <span style={{ width: `${share * 100}%` }} />
      </span>
    </button>
  );
}
