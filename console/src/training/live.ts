// A trial as it runs: its points until now by one request, what comes by events.

import { useEffect, useReducer, useRef, useState } from "react";
import { ApiError, address, get } from "../api/http";
import type { Series, Trial, TrialStatus } from "../api/records";
import { listen } from "../api/stream";

export type SeriesByName = Record<string, Series>;

const MAX_POINTS = 2000;

interface StepEvent {
  iteration: number;
  loss: number | null;
}

interface EpochEvent {
  iteration: number;
  metrics: Record<string, number | null>;
}

const ENDED: ReadonlySet<TrialStatus> = new Set(["finished", "failed", "interrupted"]);

/** The loss of each minibatch, in contrast to train_loss, its mean over an epoch. */
export const STEP_LOSS = "loss";

function append(all: SeriesByName, name: string, x: number, y: number | null): void {
  if (y === null) return;
  const old = all[name] ?? { x: [], y: [] };
  const last = old.x.at(-1);
  if (last !== undefined && last >= x) return;
  all[name] = { x: [...old.x, x], y: [...old.y, y] };
}

export interface LiveTrial {
  trial: Trial | null;
  series: SeriesByName;
  error: ApiError | null;
  /** Takes the trial that an action gave back. */
  set: (trial: Trial) => void;
}

export function useLiveTrial(id: string | null): LiveTrial {
  const [trial, setTrial] = useState<Trial | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const series = useRef<SeriesByName>({});
  // Counts how often a trial that had ended was continued: its events are followed again.
  const [continued, follow] = useReducer((round: number) => round + 1, 0);
  const [, redraw] = useReducer((round: number) => round + 1, 0);

  useEffect(() => {
    series.current = {};
    setTrial(null);
    setError(null);
  }, [id]);

  useEffect(() => {
    if (id === null) return;
    let stop: (() => void) | null = null;
    let isShown = true;
    let frame = 0;
    const later = () => {
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        series.current = { ...series.current };
        redraw();
      });
    };
    const load = async () => {
      const metrics = await get<{ series: SeriesByName; line: number }>(`/trials/${id}/metrics`, {
        points: MAX_POINTS,
      });
      if (isShown) series.current = metrics.series;
      return metrics.line;
    };
    const begin = async () => {
      const [found, since] = await Promise.all([get<Trial>(`/trials/${id}`), load()]);
      if (!isShown) return;
      setTrial(found);
      stop = listen(address(`/trials/${id}/events`, { since }), {
        step_after: (data) => {
          const { iteration, loss } = JSON.parse(data) as StepEvent;
          append(series.current, STEP_LOSS, iteration, loss);
          later();
        },
        epoch_end: (data) => {
          const { iteration, metrics: values } = JSON.parse(data) as EpochEvent;
          for (const [name, value] of Object.entries(values)) {
            append(series.current, name, iteration, value);
          }
          later();
        },
        status: (data) => {
          const now = JSON.parse(data) as Trial;
          setTrial(now);
          // The server ends the stream then; a browser would ask for it again and again.
          if (!ENDED.has(now.status)) return;
          stop?.();
          // On the way only some of the steps came; now all that a curve can show.
          void load().then(later);
        },
      });
    };
    begin().catch((reason: unknown) => {
      if (!(reason instanceof ApiError)) throw reason;
      if (isShown) setError(reason);
    });
    return () => {
      isShown = false;
      cancelAnimationFrame(frame);
      stop?.();
    };
  }, [id, continued]);

  const set = (now: Trial) => {
    if (trial && ENDED.has(trial.status) && !ENDED.has(now.status)) follow();
    setTrial(now);
  };
  return { trial, series: series.current, error, set };
}

const listeners = new Set<(trial: Trial) => void>();

/** Tells the lists of trials what an action on this page has changed. */
export function announce(trial: Trial): void {
  for (const listener of listeners) listener(trial);
}

/** Calls back at every change of any trial, made here or elsewhere, and when one is deleted. */
export function useTrialChanges(change: (trial: Trial) => void, gone: () => void): void {
  const latest = useRef({ change, gone });
  latest.current = { change, gone };
  useEffect(() => {
    const listener = (trial: Trial) => latest.current.change(trial);
    listeners.add(listener);
    const stop = listen(address("/events"), {
      status: (data) => listener(JSON.parse(data) as Trial),
      gone: () => latest.current.gone(),
    });
    return () => {
      listeners.delete(listener);
      stop();
    };
  }, []);
}
