// Undo and redo: whole states, which share all that did not change.

export interface History<T> {
  past: readonly T[];
  present: T;
  future: readonly T[];
  /** What the last step was part of: a step with the same key soon after joins it. */
  merge: { key: string; time: number } | null;
}

const MERGE_MS = 800;
const MAX_STEPS = 500;

export function start<T>(present: T): History<T> {
  return { past: [], present, future: [], merge: null };
}

/** A new step; with a key, repeated changes of one thing (typing, arrow keys) are one step. */
export function record<T>(history: History<T>, present: T, key?: string, now = Date.now()): History<T> {
  if (present === history.present) return history;
  const joins =
    key !== undefined && history.merge?.key === key && now - history.merge.time < MERGE_MS;
  return {
    past: joins ? history.past : [...history.past, history.present].slice(-MAX_STEPS),
    present,
    future: [],
    merge: key === undefined ? null : { key, time: now },
  };
}

/** The same, where the next step joins none: what was saved can be gone back to. */
export function closed<T>(history: History<T>): History<T> {
  return { ...history, merge: null };
}

export function undo<T>(history: History<T>): History<T> {
  const previous = history.past.at(-1);
  if (previous === undefined) return history;
  return {
    past: history.past.slice(0, -1),
    present: previous,
    future: [history.present, ...history.future],
    merge: null,
  };
}

export function redo<T>(history: History<T>): History<T> {
  const [next, ...rest] = history.future;
  if (next === undefined) return history;
  return { past: [...history.past, history.present], present: next, future: rest, merge: null };
}
