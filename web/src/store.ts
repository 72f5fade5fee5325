import { useEffect, useState } from "preact/hooks";

/** A value that components can watch. `set` with the same value wakes nobody. */
export class Store<T> {
  private watchers = new Set<() => void>();
  private current: T;

  constructor(first: T) {
    this.current = first;
  }

  get value(): T {
    return this.current;
  }

  set(next: T): void {
    if (Object.is(next, this.current)) return;
    this.current = next;
    for (const watcher of [...this.watchers]) watcher();
  }

  watch(watcher: () => void): () => void {
    this.watchers.add(watcher);
    return () => void this.watchers.delete(watcher);
  }
}

export function useStore<T>(store: Store<T>): T {
  const [, redraw] = useState(0);
  const drawn = store.value;
  useEffect(() => {
    // It may have changed between the render and this effect.
    if (!Object.is(drawn, store.value)) redraw((n) => n + 1);
    return store.watch(() => redraw((n) => n + 1));
  }, [store]);
  return drawn;
}
