// The attempts of an item on one line of time: waits between them, and work.

export interface AttemptTime {
  claimed_at: string;
  ended_at: string | null;
}

export interface Segment {
  attempt: number;
  kind: "wait" | "work";
  seconds: number;
  /** Share of the width, 0..1. */
  left: number;
  width: number;
  /** The wait is drawn shorter than it was. */
  shortened: boolean;
}

const LEAST_WORK = 0.4;

/**
 * Places waits and work from `begin` to `now`. When waits are so long that work would not be seen, waits share what
 * work leaves (by the square root of their length) and are marked as shortened.
 */
export function attemptSegments(attempts: AttemptTime[], begin: number | null, now: number): Segment[] {
  const pieces: { attempt: number; kind: "wait" | "work"; seconds: number }[] = [];
  let clock = begin;
  attempts.forEach((each, attempt) => {
    const from = Date.parse(each.claimed_at) / 1000;
    const to = each.ended_at === null ? now : Date.parse(each.ended_at) / 1000;
    if (!Number.isFinite(from) || !Number.isFinite(to)) return;
    if (clock !== null && from > clock) pieces.push({ attempt, kind: "wait", seconds: from - clock });
    pieces.push({ attempt, kind: "work", seconds: Math.max(0, to - from) });
    clock = Math.max(from, to);
  });
  const sum = (kind: string) => pieces.reduce((all, piece) => all + (piece.kind === kind ? piece.seconds : 0), 0);
  const work = sum("work");
  const wait = sum("wait");
  const shortened = wait > 0 && work / (work + wait) < LEAST_WORK / 2;
  const size = (piece: (typeof pieces)[number]) =>
    piece.kind === "wait" && shortened ? Math.sqrt(piece.seconds) : piece.seconds;
  const waitSize = pieces.reduce((all, piece) => all + (piece.kind === "wait" ? size(piece) : 0), 0);
  const share = (piece: (typeof pieces)[number]) => {
    if (!shortened) return work + wait > 0 ? piece.seconds / (work + wait) : 1 / Math.max(1, pieces.length);
    if (piece.kind === "wait") return (size(piece) / waitSize) * (1 - LEAST_WORK);
    return work > 0 ? (piece.seconds / work) * LEAST_WORK : LEAST_WORK / attempts.length;
  };
  let left = 0;
  return pieces.map((piece) => {
    const width = share(piece);
    const segment = { ...piece, left, width, shortened: shortened && piece.kind === "wait" };
    left += width;
    return segment;
  });
}
