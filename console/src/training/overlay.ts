// Curves of several trials over each other.

import { useEffect, useState } from "react";
import { get } from "../api/http";
import type { Trial } from "../api/records";
import { failed } from "../app/notices";
import type { Curve } from "./Curves";
import { STEP_LOSS, type SeriesByName } from "./live";

export interface TrialSeries {
  trial: Trial;
  series: SeriesByName;
}

export function useOtherSeries(ids: readonly string[]): TrialSeries[] {
  const [found, setFound] = useState<TrialSeries[]>([]);
  const key = ids.join(",");
  useEffect(() => {
    let isCurrent = true;
    const wanted = key.split(",").filter(Boolean);
    Promise.all(
      wanted.map(async (id) => {
        const [trial, { series }] = await Promise.all([
          get<Trial>(`/trials/${id}`),
          get<{ series: SeriesByName }>(`/trials/${id}/metrics`, { points: 1000 }),
        ]);
        return { trial, series };
      }),
    ).then((all) => isCurrent && setFound(all), failed);
    return () => {
      isCurrent = false;
    };
  }, [key]);
  return found;
}

export interface CurveGroup {
  title: string;
  curves: Curve[];
}

function titleOf(name: string): "Loss" | "Validation" | "Learning rate" {
  if (name === "lr") return "Learning rate";
  return name.includes("loss") || name === "cost" ? "Loss" : "Validation";
}

/** Losses in one drawing, what else was measured (errors) in another, the rate last. */
export function groupCurves(trials: readonly TrialSeries[]): CurveGroup[] {
  const groups: Record<string, Curve[]> = { Loss: [], Validation: [], "Learning rate": [] };
  trials.forEach(({ trial, series }, index) => {
    const title = trial.name || `Trial ${trial.number}`;
    for (const [name, { x, y }] of Object.entries(series)) {
      const group = groups[titleOf(name)];
      // One trial has a colour per curve, several have one each.
      const color = trials.length > 1 ? index : (group?.length ?? 0);
      const label = trials.length > 1 ? `${title}: ${name}` : name;
      group?.push({ label, x, y, color, dashed: trials.length > 1 && name === STEP_LOSS });
    }
  });
  return Object.entries(groups)
    .filter(([, curves]) => curves.length > 0)
    .map(([title, curves]) => ({ title, curves }));
}
