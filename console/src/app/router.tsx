// Addresses of pages: the History API, one pattern per page.

import { useCallback, useSyncExternalStore, type AnchorHTMLAttributes } from "react";

const listeners = new Set<() => void>();

function changed(): void {
  for (const listener of listeners) listener();
}

window.addEventListener("popstate", changed);

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function current(): string {
  return window.location.pathname + window.location.search;
}

export function useLocation(): URL {
  const text = useSyncExternalStore(subscribe, current);
  return new URL(text, window.location.origin);
}

export function navigate(to: string, options: { replace?: boolean } = {}): void {
  if (to === current()) return;
  if (options.replace) window.history.replaceState(null, "", to);
  else window.history.pushState(null, "", to);
  changed();
}

/** One parameter of the address, and a function that sets it without a new entry in the history. */
export function useParameter(name: string): [string | null, (value: string | null) => void] {
  const location = useLocation();
  const set = useCallback(
    (value: string | null) => {
      const next = new URL(window.location.href);
      if (value === null) next.searchParams.delete(name);
      else next.searchParams.set(name, value);
      navigate(next.pathname + next.search, { replace: true });
    },
    [name],
  );
  return [location.searchParams.get(name), set];
}

type LinkProps = AnchorHTMLAttributes<HTMLAnchorElement> & { to: string };

export function Link({ to, onClick, ...rest }: LinkProps) {
  return (
    <a
      href={to}
      onClick={(event) => {
        onClick?.(event);
        if (event.defaultPrevented || event.metaKey || event.ctrlKey || event.shiftKey) return;
        event.preventDefault();
        navigate(to);
      }}
      {...rest}
    />
  );
}
