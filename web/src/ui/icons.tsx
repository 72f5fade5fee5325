/** Icons of 16 x 16, drawn with strokes in the colour of the text. They accompany words and are hidden from readers. */
const PATHS = {
  overview: "M2.5 2.5h4.5v4.5h-4.5zM9 2.5h4.5v4.5H9zM2.5 9h4.5v4.5h-4.5zM9 9h4.5v4.5H9z",
  run: "M4.5 3v10l8-5z",
  lanes: "M2 4h7M11.5 4H14M2 8h3M7.5 8H14M2 12h9",
  map: "M2 4l4-1.5 4 1.5 4-1.5v9.5l-4 1.5-4-1.5L2 13.5zM6 2.5v9.5M10 4v9.5",
  items: "M5.5 4H14M5.5 8H14M5.5 12H14M2 4h.5M2 8h.5M2 12h.5",
  failures: "M8 2.2L14.3 13H1.7zM8 6.3v3.2M8 11.3v.2",
  egress: "M9 3h4v4M13 3L7.5 8.5M11.5 9.5V13H3V4.5h3.5",
  fleet: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.2M5 11h.2",
  collections: "M2.5 4.5h4l1.2 1.5h5.8v7h-11zM4.5 2.5h4",
  schedules: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 5v3.2l2.2 1.6",
  results: "M2.5 3h11v10h-11zM2.5 6.3h11M2.5 9.6h11M6.5 6.3V13",
  subtitles: "M2 3.5h12v9H2zM4.5 9.8h3.5M10 9.8h1.5M4.5 7.2H6M8.2 7.2h3.3",
  activity: "M1.5 8.5h3l2-5.5 3 10 2-4.5h3",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.7 10.7L14 14",
  done: "M3 8.5l3.2 3.2L13 4.8",
  dead: "M4 4l8 8M12 4l-8 8",
  leased: "M4.5 3v10l8-5z",
  ready: "M8 13A5 5 0 1 0 8 3a5 5 0 0 0 0 10z",
  waiting: "M4 2.5h8M4 13.5h8M5 2.5c0 4 6 7 6 11M11 2.5c0 4-6 7-6 11",
  delayed: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 5v3.2l2.2 1.6",
  skipped: "M3 4l5 4-5 4zM8.5 4l5 4-5 4z",
  cancelled: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM3.8 3.8l8.4 8.4",
  paused: "M5.5 3.5v9M10.5 3.5v9",
  info: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 7.2v3.6M8 5v.2",
  warn: "M8 2.2L14.3 13H1.7zM8 6.3v3.2M8 11.3v.2",
  copy: "M5.5 5.5h8v8h-8zM3 10.5h-.5v-8h8V3",
  close: "M4 4l8 8M12 4l-8 8",
  menu: "M2 4h12M2 8h12M2 12h12",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M12.6 3.4l-.7.7M4.1 11.9l-.7.7",
  moon: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7z",
  system: "M2 3h12v8H2zM6 13.5h4M8 11v2.5",
  chevron: "M4 6l4 4 4-4",
  right: "M6 4l4 4-4 4",
  back: "M10 4L6 8l4 4",
  external: "M9 3h4v4M13 3L7.5 8.5M11.5 9.5V13H3V4.5h3.5",
  retry: "M13 8a5 5 0 1 1-1.6-3.7M13 2.5v3h-3",
  seal: "M4 7h8v6.5H4zM5.5 7V5a2.5 2.5 0 0 1 5 0v2",
  scale: "M3 13V9M8 13V6M13 13V3",
  drain: "M8 2.5v7M5 6.8l3 3 3-3M3 13h10",
  mute: "M2.5 6h2.5l3.5-3v10l-3.5-3H2.5zM11 6.5l3 3M14 6.5l-3 3",
  pace: "M2.5 12a6 6 0 1 1 11 0M8 10.5l3-3.5",
  compare: "M5 3v10M11 3v10M2.5 5.5L5 3l2.5 2.5M8.5 10.5L11 13l2.5-2.5",
  user: "M8 8a2.7 2.7 0 1 0 0-5.4A2.7 2.7 0 0 0 8 8zM2.8 13.5a5.3 5.3 0 0 1 10.4 0",
  help: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM6.3 6.4a1.8 1.8 0 1 1 2.5 1.7c-.6.3-.8.6-.8 1.2M8 11.2v.2",
  more: "M3.5 8h.2M8 8h.2M12.5 8h.2",
  worker: "M4 4h8v8H4zM6.5 1.5V4M9.5 1.5V4M6.5 12v2.5M9.5 12v2.5M1.5 6.5H4M1.5 9.5H4M12 6.5h2.5M12 9.5h2.5",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} fill="none" stroke="currentColor" stroke-width={name === "more" ? 2.4 : 1.5} stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}
