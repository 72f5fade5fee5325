import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

interface FieldProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  hint?: ComponentChildren;
  error?: string | null;
  type?: "text" | "search" | "password" | "number";
  placeholder?: string;
  /** Choices: the field is a select then. */
  options?: readonly (readonly [value: string, text: string])[];
  /** The label is read out, not shown; the placeholder says the same. */
  hideLabel?: boolean;
  autoFocus?: boolean;
  min?: number;
  max?: number;
  name?: string;
}

export function Field({ label, value, onChange, hint, error, type = "text", placeholder, options, hideLabel, autoFocus, min, max, name }: FieldProps) {
  const id = useId();
  const described = error || hint ? `${id}-hint` : undefined;
  return (
    <div class="field">
      <label for={id} class={hideLabel ? "visually-hidden" : ""}>{label}</label>
      {options ? (
        <select id={id} name={name} value={value} aria-describedby={described} onChange={(event) => onChange(event.currentTarget.value)}>
          {options.map(([key, text]) => <option key={key} value={key}>{text}</option>)}
        </select>
      ) : (
        <input
          id={id} name={name} type={type as "text"} value={value} placeholder={placeholder} min={min} max={max} autoFocus={autoFocus}
          autocomplete={type === "password" ? "current-password" : "off"} spellcheck={false}
          aria-describedby={described} aria-invalid={error ? true : undefined}
          onInput={(event) => onChange(event.currentTarget.value)}
        />
      )}
      {(error || hint) && <p id={described} class={`small ${error ? "error-text" : "muted"}`}>{error || hint}</p>}
    </div>
  );
}

/** A search field that reports what was typed after a pause, so that one word is one request. */
export function SearchField({ label, value, onChange, placeholder, name }: { label: string; value: string; onChange: (value: string) => void; placeholder?: string; name?: string }) {
  const [typed, setTyped] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const sent = useRef(value);
  useEffect(() => {
    // The URL changed by something else: the back button, a link.
    if (value !== sent.current) {
      sent.current = value;
      setTyped(value);
    }
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return (
    <Field
      label={label} hideLabel type="search" value={typed} placeholder={placeholder ?? label} name={name}
      onChange={(next) => {
        setTyped(next);
        clearTimeout(timer.current);
        timer.current = setTimeout(() => {
          sent.current = next;
          onChange(next);
        }, 300);
      }}
    />
  );
}

export function Checkbox({ label, checked, onChange }: { label: string; checked: boolean; onChange: (checked: boolean) => void }) {
  return (
    <label class="checkbox">
      <input type="checkbox" checked={checked} onChange={(event) => onChange(event.currentTarget.checked)} />
      <span>{label}</span>
    </label>
  );
}

/** A few choices beside each other, one of them pressed: states, periods. */
export function Choice({ label, value, options, onChange }: { label: string; value: string; options: readonly (readonly [value: string, text: ComponentChildren])[]; onChange: (value: string) => void }) {
  return (
    <div class="choice" role="group" aria-label={label}>
      {options.map(([key, text]) => (
        <button key={key} type="button" aria-pressed={key === value} onClick={() => onChange(key)}>{text}</button>
      ))}
    </div>
  );
}
