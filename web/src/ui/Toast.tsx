import { Store, useStore } from "../store";
import { IconButton } from "./Button";
import { Icon } from "./icons";

interface Toast {
  id: number;
  tone: "ok" | "bad" | "info";
  text: string;
}

const toasts = new Store<Toast[]>([]);
let lastId = 0;

const dismiss = (id: number): void => toasts.set(toasts.value.filter((toast) => toast.id !== id));

export function toast(text: string, tone: Toast["tone"] = "ok"): void {
  const id = ++lastId;
  toasts.set([...toasts.value.slice(-2), { id, tone, text }]);
  // An error stays until it is read.
  if (tone !== "bad") setTimeout(() => dismiss(id), 6_000);
}

export function ToastLayer() {
  const shown = useStore(toasts);
  return (
    <div class="toasts" role="status" aria-live="polite">
      {shown.map((each) => (
        <div key={each.id} class={`toast ${each.tone}`}>
          <Icon name={each.tone === "ok" ? "done" : each.tone === "bad" ? "warn" : "info"} />
          <span class="grow wrap-anywhere">{each.text}</span>
          <IconButton icon="close" label="Dismiss" onClick={() => dismiss(each.id)} />
        </div>
      ))}
    </div>
  );
}
