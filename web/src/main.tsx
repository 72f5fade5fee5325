import { render } from "preact";
import { loadMe, loginNeeded, me } from "./api/client";
import { connection, live } from "./api/live";
import { go, startRouter } from "./router/router";
import { followRun } from "./shell/current";
import { startKeys } from "./shell/keys";
import { codeMissing } from "./shell/lazy";
import { Shell } from "./shell/Shell";
import { setLedgerTime } from "./ui/clock";
import "./ui/tokens.css";
import "./ui/base.css";
import "./ui/ui.css";
import "./shell/shell.css";

/** Links inside the dashboard change the page without loading it again. */
function onClick(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  if (!link || link.target || link.hasAttribute("download") || "native" in link.dataset || !link.getAttribute("href")) return;
  const url = new URL(link.href);
  const base = new URL(document.baseURI);
  if (url.origin !== base.origin || !url.pathname.startsWith(base.pathname) || url.pathname.startsWith(`${base.pathname}api/`)) return;
  event.preventDefault();
  go(url.pathname + url.search);
}

async function knowWho(): Promise<void> {
  for (;;) {
    try {
      await loadMe();
      live.start();
      return;
    } catch {
      if (loginNeeded.value) return;
      connection.set("reconnecting");
      await new Promise((resolve) => setTimeout(resolve, 2000));
    }
  }
}

// The clock of the ledger is told with every log-in too.
me.watch(() => me.value && setLedgerTime(me.value.time));
// Only a page of which something is missing is loaded again when the server is back.
connection.watch(() => connection.value === "live" && codeMissing.value && window.location.reload());
startRouter();
followRun();
startKeys();
document.addEventListener("click", onClick);
window.addEventListener("online", () => live.retryNow());
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && live.retryNow());
const app = document.getElementById("app");
if (app) render(<Shell />, app);
void knowWho();
