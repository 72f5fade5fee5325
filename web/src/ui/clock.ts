/** The clock of the page: that of the ledger, as far as answers have told it, and one timer for all that count. */
import { Store, useStore } from "../store";
import { useEffect } from "preact/hooks";

let offset = 0;
const ticks = new Store(Date.now());
let users = 0;
let timer: ReturnType<typeof setInterval> | null = null;

/** Remembers how far this machine's clock is from the ledger's. */
export function setLedgerTime(iso: string): void {
  const there = Date.parse(iso);
  if (Number.isFinite(there)) offset = there - Date.now();
}

export const ledgerNow = (): number => Date.now() + offset;

/** Milliseconds since 1970 on the ledger's clock; changes every second while `ticking`. */
export function useNow(ticking: boolean): number {
  useStore(ticks);
  useEffect(() => {
    if (!ticking) return;
    users += 1;
    timer ??= setInterval(() => ticks.set(Date.now()), 1000);
    return () => {
      users -= 1;
      if (users === 0 && timer !== null) {
        clearInterval(timer);
        timer = null;
      }
    };
  }, [ticking]);
  return ledgerNow();
}
