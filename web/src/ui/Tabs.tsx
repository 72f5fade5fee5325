/** Views of one thing, each with an address of its own. */
export function Tabs({ label, tabs, current }: { label: string; tabs: readonly { href: string; text: string; key: string; badge?: string }[]; current: string }) {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.key} href={tab.href} aria-current={tab.key === current ? "page" : undefined}>
          {tab.text}
          {tab.badge && <span class="tab-badge num">{tab.badge}</span>}
        </a>
      ))}
    </nav>
  );
}
