import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Store } from "../store";
import { toast } from "../ui/Toast";

/** Code could not be loaded. Browsers remember that until the page is loaded again, which it is when the server is back. */
export const codeMissing = new Store(false);

export const noteMissingCode = (): void => codeMissing.set(true);

const whenIdle = (work: () => void): void => {
  if ("requestIdleCallback" in window) window.requestIdleCallback(work, { timeout: 5_000 });
  else setTimeout(work, 1_000);
};

/**
 * A component whose code is loaded when the page has nothing else to do, or when it is first drawn; nothing is drawn until
 * then. So it is there when the server is away. When it cannot be loaded the reader is told, and `giveUp` withdraws it.
 */
export function lazy<Props extends object>(load: () => Promise<ComponentType<Props>>, giveUp: () => void): ComponentType<Props> {
  let known: ComponentType<Props> | null = null;
  const read = async (): Promise<void> => {
    known ??= await load();
  };
  window.addEventListener("load", () => whenIdle(() => void read().catch(() => undefined)));
  return function Lazy(props: Props) {
    const [, redraw] = useState(0);
    useEffect(() => {
      if (known !== null) return;
      read().then(
        () => redraw((n) => n + 1),
        () => {
          noteMissingCode();
          toast("This part of the dashboard could not be loaded. Is `shoal serve` running?", "bad");
          giveUp();
        },
      );
    }, []);
    const Loaded = known;
    return Loaded === null ? null : <Loaded {...props} />;
  };
}
