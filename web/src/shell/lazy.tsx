import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";

/** A component whose code is loaded when it is first drawn; nothing is drawn until then. */
export function lazy<Props extends object>(load: () => Promise<ComponentType<Props>>): ComponentType<Props> {
  let known: ComponentType<Props> | null = null;
  return function Lazy(props: Props) {
    const [, redraw] = useState(0);
    useEffect(() => {
      if (known === null) {
        void load().then((component) => {
          known = component;
          redraw((n) => n + 1);
        });
      }
    }, []);
    const Loaded = known;
    return Loaded === null ? null : <Loaded {...props} />;
  };
}
