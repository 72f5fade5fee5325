import { me } from "../api/client";
import { shownRoutes } from "../routes";
import { Dialog } from "../ui/Dialog";
import { helpOpen } from "./keys";

const KEYS: readonly (readonly [keys: string[], what: string])[] = [
  [["/"], "Search pages, runs and items (also Ctrl K)"],
  [["s"], "Switch to another run"],
  [["j"], "Next row of a table"],
  [["k"], "Previous row of a table"],
  [["Enter"], "Open the row"],
  [["p"], "Pause or resume live updates"],
  [["?"], "This help"],
  [["Esc"], "Close a dialog"],
];

export function Help() {
  return (
    <Dialog title="Keyboard" onClose={() => helpOpen.set(false)} wide>
      <div class="dialog-body help">
        <dl>{KEYS.map(([keys, what]) => <div key={what}><dt>{keys.map((key) => <kbd class="kbd" key={key}>{key}</kbd>)}</dt><dd>{what}</dd></div>)}</dl>
        <dl>
          {shownRoutes(me.value?.pages).filter((route) => route.key && route.nav).map((route) => (
            <div key={route.pattern}><dt><kbd class="kbd">g</kbd> <kbd class="kbd">{route.key}</kbd></dt><dd>{route.title}</dd></div>
          ))}
        </dl>
      </div>
    </Dialog>
  );
}
