// Light, dark, or as the system is.

import { create } from "zustand";

export type Theme = "auto" | "light" | "dark";

const KEY = "nnl-theme";
const ORDER: Theme[] = ["auto", "light", "dark"];

function stored(): Theme {
  return ORDER.find((theme) => theme === window.localStorage.getItem(KEY)) ?? "auto";
}

function show(theme: Theme): void {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

interface ThemeState {
  theme: Theme;
  /** What the system prefers, which may change while the page is open. */
  systemIsDark: boolean;
  next: () => void;
}

const system = window.matchMedia("(prefers-color-scheme: dark)");

export const useTheme = create<ThemeState>()((set, state) => {
  show(stored());
  return {
    theme: stored(),
    systemIsDark: system.matches,
    next: () => {
      const theme = ORDER[(ORDER.indexOf(state().theme) + 1) % ORDER.length] ?? "auto";
      window.localStorage.setItem(KEY, theme);
      show(theme);
      set({ theme });
    },
  };
});

system.addEventListener("change", () => useTheme.setState({ systemIsDark: system.matches }));

/** Whether the page is dark now: what is drawn on a canvas is drawn anew when that changes. */
export function useIsDark(): boolean {
  return useTheme(({ theme, systemIsDark }) => (theme === "auto" ? systemIsDark : theme === "dark"));
}

/** The value of a colour of the style sheet as it is now, for what is drawn on a canvas. */
export function color(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
