/** How numbers, shares, durations and times are written. Pure functions, tested in test/format.test.ts. */

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

/** 48,210 */
export function count(value: number | null | undefined): string {
  return value === null || value === undefined || !Number.isFinite(value) ? "–" : whole.format(value);
}

/** A bounded count: "10,000+". */
export function bounded(value: number | null | undefined, isAtLeast = false): string {
  return isAtLeast ? `${count(value)}+` : count(value);
}

/** 940, 12.4k, 5.1M: for axes and badges; tables write the whole number. */
export function short(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 999_950_000) return `${tenth.format(value / 1e9)}G`;
  if (size >= 999_950) return `${tenth.format(value / 1e6)}M`;
  if (size >= 10_000) return `${tenth.format(value / 1e3)}k`;
  if (size >= 100 || Number.isInteger(value)) return whole.format(value);
  return tenth.format(value);
}

/** 0.9732 -> "97.3%". Never rounds up to 100% or down to 0% what is not. */
export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return "–";
  if (share <= 0) return "0%";
  if (share >= 1) return "100%";
  if (share < 0.001) return "<0.1%";
  if (share > 0.999) return ">99.9%";
  const value = share * 100;
  return `${value < 10 || value > 99 ? value.toFixed(1) : Math.round(value)}%`;
}

/** How far a value is from an earlier one: "+12%", "−3.4%", "×14", "same". */
export function difference(before: number | null, after: number | null): string {
  if (before === null || after === null) return "–";
  if (before === after) return "same";
  if (before === 0) return "new";
  const share = (after - before) / Math.abs(before);
  if (share >= 9) return `×${Math.round(share + 1)}`;
  const size = Math.abs(share) * 100;
  return `${share > 0 ? "+" : "−"}${size < 10 ? size.toFixed(1) : Math.round(size)}%`;
}

/** 0.042 -> "42 ms", 3.2 -> "3.2 s", 95 -> "1m 35s", 13200 -> "3h 40m". */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const value = Math.max(0, seconds);
  if (value === 0) return "0 s";
  if (value < 0.001) return "<1 ms";
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  const rounded = Math.round(value);
  if (rounded < 60) return `${rounded} s`;
  const units: [number, string][] = [[86_400, "d"], [3_600, "h"], [60, "m"], [1, "s"]];
  const first = units.findIndex(([size]) => rounded >= size);
  const [size, unit] = units[first] as [number, string];
  const [nextSize, nextUnit] = units[first + 1] as [number, string];
  const head = Math.floor(rounded / size);
  const tail = Math.floor((rounded % size) / nextSize);
  return tail === 0 ? `${head}${unit}` : `${head}${unit} ${tail}${nextUnit}`;
}

/** "3h 40m – 4h 30m", or one value when both are written alike. */
export function range(ends: readonly [number, number] | number | null | undefined): string {
  if (ends === null || ends === undefined) return "–";
  if (typeof ends === "number") return duration(ends);
  const low = duration(ends[0]);
  const high = duration(ends[1]);
  return low === high ? low : `${low} – ${high}`;
}

export function bytes(size: number | null | undefined): string {
  if (size === null || size === undefined || !Number.isFinite(size)) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = size;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** Seconds since a time; negative when it is ahead. `now` is the clock that decides, in milliseconds. */
export function secondsSince(iso: string, now: number): number {
  return (now - Date.parse(iso)) / 1000;
}

/** "12 s ago", "in 3m": coarse, so that it does not tick every moment. */
export function ago(iso: string, now: number): string {
  const seconds = secondsSince(iso, now);
  if (!Number.isFinite(seconds)) return "–";
  const size = Math.abs(seconds);
  if (size < 2) return "now";
  const coarse = size < 60 ? `${Math.round(size)} s` : size < 3600 ? `${Math.round(size / 60)} min` : duration(size);
  return seconds >= 0 ? `${coarse} ago` : `in ${coarse}`;
}

/** Only http and https addresses become links: a record may hold `javascript:` and worse. */
export function safeUrl(text: string | null | undefined): string | null {
  if (!text || !/^https?:\/\//i.test(text)) return null;
  try {
    const url = new URL(text);
    return url.protocol === "http:" || url.protocol === "https:" ? url.href : null;
  } catch {
    return null;
  }
}

/** An argument as a POSIX shell reads it back. */
export function shellQuote(argument: string): string {
  return /^[\w@%+=:,./-]+$/.test(argument) ? argument : `'${argument.replaceAll("'", `'\\''`)}'`;
}

/** `command("items", "ls", run, "--state", "dead")`; options without a value are left out with their names. */
export function command(...words: (string | number | null | undefined | [string, string | number | null | undefined])[]): string {
  const parts: string[] = ["shoal"];
  for (const word of words) {
    if (Array.isArray(word)) {
      if (word[1] !== null && word[1] !== undefined && word[1] !== "") parts.push(word[0], shellQuote(String(word[1])));
    } else if (word !== null && word !== undefined && word !== "") parts.push(shellQuote(String(word)));
  }
  return parts.join(" ");
}
