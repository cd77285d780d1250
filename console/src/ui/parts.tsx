// The small parts that all pages are made of.

import { useEffect, useLayoutEffect, useRef, type ReactNode } from "react";
import type { ErrorBody } from "../api/records";

interface FailureProps {
  error: Omit<ErrorBody, "code"> & { code?: string };
  retry?: () => void;
}

export function Failure({ error, retry }: FailureProps) {
  const place = [error.code, error.where].filter(Boolean).join(" · ");
  return (
    <div className="failure" role="alert">
      <strong>{error.message}</strong>
      {error.hint && <p>{error.hint}</p>}
      {place && <p className="muted mono">{place}</p>}
      {retry && <button onClick={retry}>Try again</button>}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <strong>{title}</strong>
      {children && <div className="muted">{children}</div>}
    </div>
  );
}

export function Loading({ what }: { what: string }) {
  return (
    <p className="loading muted" role="status">
      Loading {what} …
    </p>
  );
}

interface DialogProps {
  title: string;
  close: () => void;
  children: ReactNode;
  wide?: boolean;
}

/** A modal dialog; the browser keeps the focus in it and closes it on Escape. */
export function Dialog({ title, close, children, wide = false }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    ref.current?.showModal();
  }, []);
  return (
    <dialog
      ref={ref}
      className={wide ? "wide" : undefined}
      aria-label={title}
      onClose={close}
      onKeyDown={(event) => event.stopPropagation()}
    >
      <header>
        <h2>{title}</h2>
        <button className="icon" aria-label="Close" onClick={close}>
          ×
        </button>
      </header>
      {children}
    </dialog>
  );
}

export interface MenuItem {
  label: string;
  act: () => void;
  keys?: string;
  disabled?: boolean;
  danger?: boolean;
}

/** A button that opens a list of actions. */
interface MenuProps {
  label: ReactNode;
  items: MenuItem[];
  name?: string;
  className?: string;
}

export function Menu({ label, items, name, className = "" }: MenuProps) {
  const ref = useRef<HTMLDetailsElement>(null);
  const close = () => ref.current?.removeAttribute("open");
  return (
    <details
      className={`menu ${className}`}
      ref={ref}
      onBlur={(event) => {
        if (!event.currentTarget.contains(event.relatedTarget)) close();
      }}
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        close();
        ref.current?.querySelector("summary")?.focus();
      }}
    >
      <summary className="button" aria-label={name}>
        {label}
      </summary>
      <div role="menu">
        {items.map((item) => (
          <button
            key={item.label}
            role="menuitem"
            className={item.danger ? "danger" : undefined}
            disabled={item.disabled}
            // A press keeps the focus where it is: Safari would close the menu before the click.
            onMouseDown={(event) => event.preventDefault()}
            onClick={() => {
              close();
              item.act();
            }}
          >
            <span>{item.label}</span>
            {item.keys && <kbd>{item.keys}</kbd>}
          </button>
        ))}
      </div>
    </details>
  );
}

const ITEM_HEIGHT = 32;

interface ContextMenuProps {
  label: string;
  at: { x: number; y: number };
  items: readonly MenuItem[];
  close: () => void;
}

/** Actions where the pointer is; closes as soon as the focus leaves it. */
export function ContextMenu({ label, at, items, close }: ContextMenuProps) {
  const ref = useRef<HTMLDivElement>(null);
  // Before it is seen: whoever sees it presses keys.
  useLayoutEffect(() => ref.current?.querySelector("button")?.focus(), []);
  return (
    <div
      ref={ref}
      role="menu"
      aria-label={label}
      className="context-menu"
      style={{ left: at.x, top: Math.min(at.y, window.innerHeight - ITEM_HEIGHT * items.length) }}
      onBlur={({ currentTarget, relatedTarget }) => {
        if (!currentTarget.contains(relatedTarget)) close();
      }}
      onKeyDown={({ key, currentTarget }) => {
        if (key === "Escape") close();
        const buttons = [...currentTarget.querySelectorAll("button")];
        const step = { ArrowDown: 1, ArrowUp: -1 }[key];
        const now = buttons.findIndex((button) => button === document.activeElement);
        if (step !== undefined) buttons.at((now + step) % buttons.length)?.focus();
      }}
    >
      {items.map((item) => (
        <button
          key={item.label}
          role="menuitem"
          onClick={() => {
            close();
            item.act();
          }}
        >
          {item.label}
        </button>
      ))}
    </div>
  );
}

interface TabsProps<T extends string> {
  label: string;
  tabs: readonly { id: T; title: string; count?: number }[];
  current: T;
  choose: (id: T) => void;
}

export function Tabs<T extends string>({ label, tabs, current, choose }: TabsProps<T>) {
  const step = (by: number) => {
    const index = tabs.findIndex((tab) => tab.id === current);
    const next = tabs[(index + by + tabs.length) % tabs.length];
    if (next) choose(next.id);
  };
  return (
    <div
      className="tabs"
      role="tablist"
      aria-label={label}
      onKeyDown={(event) => {
        if (event.key === "ArrowRight") step(1);
        else if (event.key === "ArrowLeft") step(-1);
      }}
    >
      {tabs.map((tab) => (
        <button
          key={tab.id}
          role="tab"
          aria-selected={tab.id === current}
          tabIndex={tab.id === current ? 0 : -1}
          onClick={() => choose(tab.id)}
        >
          {tab.title}
          {tab.count ? <span className="badge">{tab.count}</span> : null}
        </button>
      ))}
    </div>
  );
}

export function Field({ label, hint, children }: { label: string; hint?: string; children: ReactNode }) {
  return (
    <label className="field">
      <span title={hint}>{label}</span>
      {children}
    </label>
  );
}

/** Points of one curve as a small line without axes. */
export function Sparkline({ values, label }: { values: readonly number[]; label: string }) {
  if (values.length < 2) return <svg className="sparkline" aria-hidden="true" />;
  const low = Math.min(...values);
  const range = Math.max(...values) - low || 1;
  const points = values.map(
    (value, index) => `${(index / (values.length - 1)) * 100},${19 - ((value - low) / range) * 18}`,
  );
  return (
    <svg className="sparkline" viewBox="0 0 100 20" preserveAspectRatio="none" role="img" aria-label={label}>
      <polyline points={points.join(" ")} vectorEffect="non-scaling-stroke" />
    </svg>
  );
}
