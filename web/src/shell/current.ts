/** The run that pages of a run are about: that of the address, else the last one that was looked at. */
import { location } from "../router/router";
import { Store } from "../store";

const NAME = "shoal.run";

function stored(): string | null {
  try {
    return sessionStorage.getItem(NAME);
  } catch {
    return null;
  }
}

export const currentRun = new Store<string | null>(stored());

export function followRun(): () => void {
  const read = (): void => {
    const run = /^runs\/([^/]+)/.exec(location.value.path)?.[1];
    if (!run) return;
    let name: string;
    try {
      name = decodeURIComponent(run);
    } catch {
      return;
    }
    currentRun.set(name);
    try {
      sessionStorage.setItem(NAME, name);
    } catch {
      // Storage may be forbidden.
    }
  };
  read();
  return location.watch(read);
}
