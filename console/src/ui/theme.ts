import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

function kept(): Theme {
  try {
    const t = localStorage.getItem("cove-theme");
    return t === "light" || t === "dark" ? t : "system";
  } catch {
    return "system";
  }
}

export const theme = signal<Theme>(kept());

export function applyTheme(): void {
  theme.subscribe((t) => {
    if (t === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = t;
    try {
      localStorage.setItem("cove-theme", t);
    } catch {
      // Without storage the choice lasts as long as the page.
    }
  });
}

const media = matchMedia("(prefers-color-scheme: dark)");
const systemDark = signal(media.matches);
media.addEventListener("change", (e) => {
  systemDark.value = e.matches;
});

/** isDark reports what is shown now; components that read it are drawn again when it changes. */
export function isDark(): boolean {
  return theme.value === "dark" || (theme.value === "system" && systemDark.value);
}

/** color returns a colour of the theme as the browser computes it, for what draws by itself. */
export function color(name: string): string {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
