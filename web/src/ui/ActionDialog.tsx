import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, idempotencyKey, perform, preview, type Action } from "../api/client";
import type { Done, Preview } from "../api/types";
import { useStore } from "../store";
import { asked, changes, type ActionSpec } from "./action";
import { Button } from "./Button";
import { Dialog } from "./Dialog";
import { Field } from "./Field";
import { bounded, count } from "./format";
import { Icon } from "./icons";
import { ErrorNote, Note, Placeholder } from "./notes";
import { toast } from "./Toast";
import { CopyCommand, Sentence } from "./values";

const asError = (caught: unknown): ApiError =>
  caught instanceof ApiError ? caught : new ApiError(0, "bug", String(caught));

/** The dialog of the page: it is empty until somebody asks for a change. */
export function ActionLayer() {
  const spec = useStore(asked);
  return spec === null ? null : <ActionDialog key={spec.title} spec={spec} onClose={() => asked.set(null)} />;
}

/** Preview, confirm, result; with `few` the first items go first, and the rest after a look at them. */
export function ActionDialog({ spec, onClose }: { spec: ActionSpec; onClose: () => void }) {
  const [values, setValues] = useState<Record<string, string>>(
    Object.fromEntries((spec.fields ?? []).map((field) => [field.name, field.value])),
  );
  const [seen, setSeen] = useState<Preview | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [busy, setBusy] = useState(false);
  const [done, setDone] = useState<Done | null>(null);
  const [fewDone, setFewDone] = useState<Done | null>(null);
  // A second press after a lost answer must not do it twice: the key belongs to what is asked for, not to the press.
  const keys = useRef(new Map<string, string>());
  const action = spec.action(values);
  const text = JSON.stringify(action);

  useEffect(() => {
    if (action === null || done) return;
    let mine = true;
    const timer = setTimeout(() => {
      preview(action).then(
        (answer) => {
          if (!mine) return;
          setSeen(answer);
          setError(null);
        },
        (caught: unknown) => {
          if (!mine) return;
          setSeen(null);
          setError(asError(caught));
        },
      );
    }, spec.fields?.length ? 250 : 0);
    return () => {
      mine = false;
      clearTimeout(timer);
    };
  }, [text, done !== null, fewDone !== null]);

  const run = async (chosen: Action, after: (answer: Done) => void): Promise<void> => {
    const name = JSON.stringify(chosen);
    const key = keys.current.get(name) ?? idempotencyKey();
    keys.current.set(name, key);
    setBusy(true);
    setError(null);
    try {
      const answer = await perform(chosen, key);
      after(answer);
      spec.onDone?.(answer);
      changes.set(changes.value + 1);
    } catch (caught) {
      setError(asError(caught));
    } finally {
      setBusy(false);
    }
  };

  const confirm = (): void => {
    if (action === null || busy) return;
    void run(action, (answer) => {
      if (fewDone === null && !spec.few) {
        toast(answer.text);
        onClose();
      } else setDone(answer);
    });
  };
  const nothing = seen !== null && seen.items === 0;
  const few = spec.few && (seen?.items == null || seen.items > spec.few.limit) ? spec.few : null;

  return (
    <Dialog title={spec.title} onClose={onClose}>
      <form
        class="dialog-body stack"
        onSubmit={(event) => {
          event.preventDefault();
          if (done === null && !few) confirm();
        }}
      >
        {spec.explain && done === null && <p class="muted">{spec.explain}</p>}
        {spec.warn && <Note tone="warn">{spec.warn}</Note>}
        {done === null && spec.fields?.map((field) => (
          <Field
            key={field.name} label={field.label} type={field.type} value={values[field.name] ?? ""} hint={field.hint}
            placeholder={field.placeholder} min={field.min} max={field.max} options={field.options}
            onChange={(value) => setValues((before) => ({ ...before, [field.name]: value }))}
          />
        ))}
        {fewDone !== null && done === null && (
          <Note tone="ok">
            <p><Sentence text={fewDone.text} /></p>
            {spec.few?.look && <p><a href={spec.few.look} onClick={onClose}>{spec.warn ? "Look at them" : "Look at how they end"}</a>, or go on with the rest here.</p>}
          </Note>
        )}
        {done !== null ? (
          <Note tone="ok"><p role="status"><Sentence text={done.text} /></p></Note>
        ) : error !== null ? (
          <ErrorNote error={error} />
        ) : seen === null ? (
          action === null ? null : <Placeholder height={72} label="Asking how much this would change" />
        ) : (
          <div class={`preview ${spec.danger ? "danger" : ""}`} role="status">
            {seen.items !== null && <span class="preview-count num">{bounded(seen.items, seen.items_is_at_least)}</span>}
            <span class="wrap-anywhere"><Sentence text={seen.text} /></span>
          </div>
        )}
        {(done ?? seen)?.command && <CopyCommand command={(done ?? seen)?.command ?? ""} />}
        <footer class="dialog-foot">
          {done !== null ? (
            <Button kind="primary" type="button" onClick={onClose}>Close</Button>
          ) : (
            <>
              <Button onClick={onClose}>{fewDone === null ? "Cancel" : "Leave the rest"}</Button>
              {few && fewDone === null && (
                <Button kind="primary" disabled={busy || seen === null} onClick={() => void run(few.action, setFewDone)}>
                  {`${spec.confirm} ${few.limit} first`}
                </Button>
              )}
              <Button
                kind={few && fewDone === null ? "plain" : spec.danger ? "danger" : "primary"}
                type={few ? "button" : "submit"}
                disabled={busy || seen === null || nothing}
                onClick={few ? confirm : undefined}
              >
                {fewDone !== null
                  ? `${spec.confirm} the rest`
                  : few && seen?.items != null ? `${spec.confirm} all ${count(seen.items)}${seen.items_is_at_least ? "+" : ""}` : spec.confirm}
              </Button>
            </>
          )}
        </footer>
        {busy && <p class="small muted" role="status"><Icon name="waiting" size={12} /> Working…</p>}
      </form>
    </Dialog>
  );
}

