// How curves are drawn; part of the address, so that a link shows the same.

import { useParameter } from "../app/router";

export interface CurveSettings {
  logarithmic: boolean;
  smoothing: number;
  setLogarithmic: (on: boolean) => void;
  setSmoothing: (weight: number) => void;
}

export function useCurveSettings(): CurveSettings {
  const [scale, setScale] = useParameter("scale");
  const [smoothing, setSmoothing] = useParameter("smooth");
  return {
    logarithmic: scale === "log",
    smoothing: Number(smoothing ?? 0) || 0,
    setLogarithmic: (on) => setScale(on ? "log" : null),
    setSmoothing: (weight) => setSmoothing(weight > 0 ? String(weight) : null),
  };
}

export function CurveControls({ settings }: { settings: CurveSettings }) {
  return (
    <>
      <label className="check">
        Smoothing
        <input
          type="range"
          min={0}
          max={0.98}
          step={0.02}
          value={settings.smoothing}
          onChange={(event) => settings.setSmoothing(Number(event.target.value))}
        />
      </label>
      <label className="check">
        <input
          type="checkbox"
          checked={settings.logarithmic}
          onChange={(event) => settings.setLogarithmic(event.target.checked)}
        />
        Logarithmic
      </label>
    </>
  );
}
