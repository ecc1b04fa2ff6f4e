// Icons of 16 by 16, drawn with one stroke.
const PATHS = {
  tree: "M4 3v10M4 6h4a2 2 0 0 1 2 2v0M4 10h3M10 8h2.5M4 3h0M12.5 8h0",
  table: "M2.5 3.5h11v9h-11zM2.5 6.5h11M2.5 9.5h11M6 6.5v6",
  fork: "M5 5.5v5M5 7c0 2 6 1 6-1.5M5 4a1.4 1.4 0 1 0 0-.01M11 4a1.4 1.4 0 1 0 0-.01M5 12a1.4 1.4 0 1 0 0-.01",
  merge: "M4.5 5.5v5M4.5 5.5c0 3 3 3.5 6 3.5M4.5 4a1.4 1.4 0 1 0 0-.01M11.8 9a1.4 1.4 0 1 0 0-.01M4.5 12a1.4 1.4 0 1 0 0-.01",
  camera: "M2.5 5.5h2.5l1-1.8h4l1 1.8h2.5v7h-11zM8 11a2.1 2.1 0 1 0 0-4.2A2.1 2.1 0 0 0 8 11z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  play: "M5 3.2v9.6l7.5-4.8z",
  kill: "M4 4l8 8M12 4l-8 8",
  back: "M3 8a5 5 0 1 0 1.6-3.7M3 3v3h3",
  diff: "M8 2.5v7M4.5 6h7M4.5 13h7",
  open: "M9.5 3h3.5v3.5M13 3L7.5 8.5M11 9.5V13H3V5h3.5",
  search: "M7 12a5 5 0 1 0 0-10 5 5 0 0 0 0 10zM14 14l-3.4-3.4",
  terminal: "M2.5 3h11v10h-11zM5 6l2 2-2 2M8.5 10h2.5",
  file: "M4 2.5h5l3 3v8H4zM9 2.5v3h3",
  folder: "M2 4h4l1.5 1.5H14V13H2z",
  code: "M5.5 4.5L2 8l3.5 3.5M10.5 4.5L14 8l-3.5 3.5",
  jobs: "M3 4h10M3 8h10M3 12h6",
  globe: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM2 8h12M8 2c2 2 2.6 4 2.6 6S10 12 8 14c-2-2-2.6-4-2.6-6S6 4 8 2z",
  link: "M6.8 9.2a2.6 2.6 0 0 0 3.7 0l2-2a2.6 2.6 0 0 0-3.7-3.7l-.8.8M9.2 6.8a2.6 2.6 0 0 0-3.7 0l-2 2a2.6 2.6 0 0 0 3.7 3.7l.8-.8",
  chart: "M2.5 13.5h11M4 11l3-4 2.5 2.5L13 4.5",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.8V8l2.2 1.6",
  settings:
    "M3 5h6M12 5h1M3 11h1M7 11h6M10.5 6.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM5.5 12.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3z",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8z",
  check: "M3 8.5l3.2 3.2L13 5",
  plus: "M8 3v10M3 8h10",
  close: "M4 4l8 8M12 4l-8 8",
  right: "M6 3.5L10.5 8 6 12.5",
  down: "M3.5 6L8 10.5 12.5 6",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  screen: "M2 3h12v8H2zM6 13.5h4M8 11v2.5",
  layers: "M8 2l6 3-6 3-6-3zM2 8l6 3 6-3M2 11l6 3 6-3",
  disk: "M3 4.5C3 3 13 3 13 4.5v7c0 1.5-10 1.5-10 0zM3 4.5C3 6 13 6 13 4.5M3 8c0 1.5 10 1.5 10 0",
  key: "M9.5 9a3 3 0 1 0-2.2-1L2.5 12.8V14H5v-1.5h1.5V11L8 9.2",
  lock: "M4 7.5h8v6H4zM5.5 7.5V5.3a2.5 2.5 0 0 1 5 0v2.2",
  list: "M5.5 4h8M5.5 8h8M5.5 12h8M2.5 4h.01M2.5 8h.01M2.5 12h.01",
  server: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.5v1.2M8 13.3v1.2M1.5 8h1.2M13.3 8h1.2M3.4 3.4l.9.9M11.7 11.7l.9.9M12.6 3.4l-.9.9M4.3 11.7l-.9.9",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5z",
  help: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM6.3 6.2a1.8 1.8 0 1 1 2.6 1.6c-.6.3-.9.6-.9 1.3M8 11.3h.01",
  upload: "M8 11V3M4.8 6L8 2.8 11.2 6M3 13.2h10",
  download: "M8 3v8M4.8 8L8 11.2 11.2 8M3 13.2h10",
  save: "M3 3h8l2 2v8H3zM5.5 3v3h4V3M5.5 13V9.5h5V13",
  trash: "M3 4.5h10M6 4.5V3h4v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5",
  bolt: "M8.8 2L4 9h3.5L7 14l5-7H8.5z",
  warn: "M8 2.5l6 11H2zM8 6.5v3.2M8 11.7h.01",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  exit: "M6.5 3H3v10h3.5M10 5.2L13 8l-3 2.8M13 8H6.5",
  sheet: "M3 3h10v10H3z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16, class: cls }: { name: IconName; size?: number; class?: string }) {
  return (
    <svg
      class={`icon ${cls ?? ""}`}
      width={size}
      height={size}
      viewBox="0 0 16 16"
      fill="none"
      stroke="currentColor"
      stroke-width={name === "more" ? 2.3 : 1.5}
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Logo({ size = 22 }: { size?: number }) {
  return (
    <svg width={size} height={size} viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="var(--accent-solid)" />
      <path d="M22.5 11.2A8 8 0 1 0 22.5 20.8" fill="none" stroke="var(--on-accent)" stroke-width="3" stroke-linecap="round" />
      <circle cx="16" cy="16" r="2.2" fill="var(--on-accent)" />
    </svg>
  );
}
