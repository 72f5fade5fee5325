export function Logo() {
  return (
    <svg class="logo" width="24" height="24" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="7" fill="var(--accent)" />
      <path d="M6 11c4-4 9-4 13 0l4-3v7l-4-3c-4 4-9 4-13-1zM9 21c4-4 9-4 13 0l4-3v7l-4-3c-4 4-9 4-13-1z" fill="var(--on-accent)" />
    </svg>
  );
}
