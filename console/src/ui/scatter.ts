// Error against cost: the drawing of the trade-off of trials and of a search's front.

import type { EChartsCoreOption } from "echarts/core";
import { count, measure } from "./format";

export interface ScatterPoint {
  id: string;
  title: string;
  x: number;
  y: number;
  onFront: boolean;
  isCurrent: boolean;
}

/** The points that no other beats in both directions, from the cheapest on. */
export function paretoFront<P extends { x: number; y: number }>(points: readonly P[]): P[] {
  let best = Infinity;
  return [...points]
    .sort((a, b) => a.x - b.x || a.y - b.y)
    .filter((point) => {
      if (point.y >= best) return false;
      best = point.y;
      return true;
    });
}

export function scatterOption(
  points: readonly ScatterPoint[],
  names: { x: string; y: string },
  colors: (name: string) => string,
): EChartsCoreOption {
  const axis = {
    scale: true,
    nameLocation: "middle",
    axisLine: { lineStyle: { color: colors("line-strong") } },
    axisLabel: { color: colors("muted") },
    nameTextStyle: { color: colors("muted") },
    splitLine: { lineStyle: { color: colors("line") } },
  };
  const item = (point: ScatterPoint) => ({
    id: point.id,
    name: point.title,
    value: [point.x, point.y],
    symbolSize: point.isCurrent ? 15 : 10,
    itemStyle: {
      color: point.onFront ? colors("accent") : colors("muted"),
      opacity: point.onFront ? 1 : 0.55,
      borderColor: colors("text"),
      borderWidth: point.isCurrent ? 2 : 0,
    },
  });
  const front = paretoFront(points.filter((point) => point.onFront));
  return {
    grid: { left: 70, right: 24, top: 20, bottom: 48 },
    // HTML in a tooltip would need styles that the page's security policy refuses.
    tooltip: {
      renderMode: "richText",
      formatter: ({ name, value }: { name: string; value: [number, number] }) =>
        `${name}\n${names.y} ${measure(value[1])}\n${names.x} ${count(value[0])}`,
    },
    xAxis: { ...axis, type: "value", name: names.x, nameGap: 28, axisLabel: { ...axis.axisLabel, formatter: count } },
    yAxis: { ...axis, type: "value", name: names.y, nameGap: 48 },
    series: [
      {
        type: "line",
        data: front.map((point) => [point.x, point.y]),
        step: "end",
        symbol: "none",
        silent: true,
        lineStyle: { color: colors("accent"), width: 1.5, opacity: 0.7 },
      },
      { type: "scatter", data: points.map(item) },
    ],
  };
}

export function idOf(data: unknown): string | null {
  return typeof data === "object" && data !== null && "id" in data ? String(data.id) : null;
}
