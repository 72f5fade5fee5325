import type { ComponentChildren } from "preact";

/** A part of a page. Its title is a question or a name; `actions` stand at its end. */
export function Card({ title, actions, note, children, flush, id }: { title?: ComponentChildren; actions?: ComponentChildren; note?: ComponentChildren; children: ComponentChildren; flush?: boolean; id?: string }) {
  return (
    <section class={`card ${flush ? "flush" : ""}`} id={id}>
      {(title || actions) && (
        <header class="card-head">
          <div class="grow">
            {title && <h2>{title}</h2>}
            {note && <p class="small muted">{note}</p>}
          </div>
          {actions && <div class="row">{actions}</div>}
        </header>
      )}
      <div class="card-body">{children}</div>
    </section>
  );
}

/** One figure with its name. */
export function Stat({ label, children, note, tip }: { label: string; children: ComponentChildren; note?: ComponentChildren; tip?: string }) {
  return (
    <div class="stat" data-tip={tip}>
      <dt>{label}</dt>
      <dd class="num">{children}</dd>
      {note && <dd class="stat-note num">{note}</dd>}
    </div>
  );
}

export function Stats({ children }: { children: ComponentChildren }) {
  return <dl class="stats">{children}</dl>;
}

/** The head of a page: where it is, its name, what can be done. The shell moves the focus to its h1. */
export function PageHead({ title, badge, children, actions }: { title: ComponentChildren; badge?: ComponentChildren; children?: ComponentChildren; actions?: ComponentChildren }) {
  return (
    <header class="page-head">
      <div class="grow">
        <div class="row wrap"><h1 tabIndex={-1}>{title}</h1>{badge}</div>
        {children && <div class="page-note muted">{children}</div>}
      </div>
      {actions && <div class="row wrap page-actions">{actions}</div>}
    </header>
  );
}

/** Names and values below each other. */
export function Facts({ facts }: { facts: readonly (readonly [name: string, value: ComponentChildren])[] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <div key={name}><dt>{name}</dt><dd class="wrap-anywhere">{value}</dd></div>
      ))}
    </dl>
  );
}
