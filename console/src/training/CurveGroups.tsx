// The curves of some trials, losses in one drawing and what else was measured in another.

import { useMemo } from "react";
import type { CurveSettings } from "./CurveControls";
import { Curves } from "./Curves";
import { groupCurves, type TrialSeries } from "./overlay";

interface CurveGroupsProps {
  trials: readonly TrialSeries[];
  settings: CurveSettings;
}

export function CurveGroups({ trials, settings }: CurveGroupsProps) {
  const groups = useMemo(() => groupCurves(trials), [trials]);
  return groups.map(({ title, curves }) => (
    <Curves
      key={title}
      title={title}
      curves={curves}
      logarithmic={settings.logarithmic}
      smoothing={title === "Loss" ? settings.smoothing : 0}
    />
  ));
}
