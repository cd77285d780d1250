// Curves over iterations. Drawn on a canvas, which keeps up with many points.

import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { color, useIsDark } from "../app/theme";
import { measure } from "../ui/format";
import { extremes, join, smooth } from "./smooth";

export interface Curve {
  label: string;
  x: readonly number[];
  y: readonly number[];
  /** Which of the colours of the style sheet; curves of one trial share it. */
  color: number;
  dashed?: boolean;
}

interface CurvesProps {
  title: string;
  curves: readonly Curve[];
  logarithmic: boolean;
  smoothing: number;
  height?: number;
  /** What x counts. */
  over?: string;
}

const COLORS = 6;
/** Fewer points than this are drawn as points, and as they are. */
const FEW = 60;

export function seriesColor(index: number): string {
  return color(`series-${(index % COLORS) + 1}`);
}

/** What is drawn: a curve, or the upper or lower edge of the band behind a smoothed one. */
interface Line extends Curve {
  edge: "upper" | "lower" | null;
}

/** Smoothing hides how far values scatter: the band behind the curve says it. */
function linesOf(curves: readonly Curve[], smoothing: number): Line[] {
  return curves.flatMap((curve): Line[] => {
    if (smoothing <= 0 || curve.x.length < FEW) return [{ ...curve, edge: null }];
    const { low, high } = extremes(curve.y, smoothing);
    return [
      { ...curve, y: high, edge: "upper" },
      { ...curve, y: low, edge: "lower" },
      { ...curve, y: smooth(curve.y, smoothing), edge: null },
    ];
  });
}

/** Of a line, from its index on, where the first series is the x axis. */
function bandOf({ edge, color: index }: Line, at: number): uPlot.Band[] {
  const fill = `color-mix(in srgb, ${seriesColor(index)} 22%, transparent)`;
  return edge === "upper" ? [{ series: [at + 1, at + 2], fill }] : [];
}

const DIGIT_WIDTH = 7;

function options(
  lines: readonly Line[],
  size: { width: number; height: number },
  logarithmic: boolean,
  over: string,
): uPlot.Options {
  const axis: uPlot.Axis = {
    stroke: color("muted"),
    grid: { stroke: color("line"), width: 1 },
    ticks: { stroke: color("line"), width: 1 },
    font: "11px system-ui",
  };
  return {
    ...size,
    scales: { x: { time: false }, y: { distr: logarithmic ? 3 : 1 } },
    axes: [
      { ...axis, size: 32 },
      {
        ...axis,
        size: (_, texts) => Math.max(58, ...(texts ?? []).map((text) => 14 + DIGIT_WIDTH * text.length)),
        values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : measure(tick))),
      },
    ],
    cursor: { drag: { x: true, y: false } },
    series: [
      { label: over },
      ...lines.map((line): uPlot.Series => ({
        label: line.edge ? `${line.label} (${line.edge})` : line.label,
        stroke: seriesColor(line.color),
        width: line.edge ? 0 : 1.6,
        spanGaps: true,
        points: { show: line.x.length < FEW, size: 4 },
        value: (_, value: number | null) => measure(value),
        ...(line.edge ? { class: "edge" } : {}),
        ...(line.dashed ? { dash: [5, 4] } : {}),
      })),
    ],
    bands: lines.flatMap(bandOf),
  };
}

export function Curves({
  title,
  curves,
  logarithmic,
  smoothing,
  height = 240,
  over = "iteration",
}: CurvesProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const isDark = useIsDark();
  // What needs a new drawing, in contrast to new points of the same curves.
  const kind = JSON.stringify([
    isDark,
    logarithmic,
    smoothing > 0,
    curves.map((curve) => [curve.label, curve.color, curve.x.length < FEW]),
  ]);
  const latest = useRef({ curves, smoothing, logarithmic });
  latest.current = { curves, smoothing, logarithmic };

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const now = latest.current;
    const drawn = linesOf(now.curves, now.smoothing);
    const size = { width: element.clientWidth, height };
    const created = new uPlot(options(drawn, size, now.logarithmic, over), join(drawn), element);
    plot.current = created;
    const observer = new ResizeObserver(() => {
      created.setSize({ width: element.clientWidth, height });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      created.destroy();
      plot.current = null;
    };
  }, [kind, height, over]);

  useEffect(() => {
    plot.current?.setData(join(linesOf(curves, smoothing)));
  }, [curves, smoothing]);

  return (
    <figure className="curves" aria-label={title}>
      <figcaption>{title}</figcaption>
      <div ref={box} />
    </figure>
  );
}
