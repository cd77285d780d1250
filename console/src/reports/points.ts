// Points of several groups on logarithmic axes: sizes and times of operators span decades.

import type { EChartsCoreOption } from "echarts/core";
import { count, measure } from "../ui/format";
import type { Group } from "./Drawings";

const COLORS = 6;

export function pointsOption(
  groups: readonly Group[],
  x: string,
  y: string,
  colors: (name: string) => string,
): EChartsCoreOption {
  const axis = {
    type: "log",
    nameLocation: "middle",
    axisLabel: { color: colors("muted"), formatter: count },
    nameTextStyle: { color: colors("muted") },
    splitLine: { lineStyle: { color: colors("line") } },
  };
  return {
    grid: { left: 76, right: 24, top: 20, bottom: 48 },
    // HTML in a tooltip would need styles that the page's security policy refuses.
    tooltip: {
      renderMode: "richText",
      formatter: ({ seriesName, value }: { seriesName: string; value: [number, number] }) =>
        `${seriesName}\n${y} ${measure(value[1])}\n${x} ${count(value[0])}`,
    },
    xAxis: { ...axis, name: x, nameGap: 28 },
    yAxis: { ...axis, name: y, nameGap: 56, axisLabel: { ...axis.axisLabel, formatter: measure } },
    series: groups.map(({ label, points }, index) => ({
      type: "scatter",
      name: label,
      symbolSize: 5,
      itemStyle: { color: colors(`series-${(index % COLORS) + 1}`), opacity: 0.7 },
      data: points.filter(([at, value]) => at > 0 && value > 0),
    })),
  };
}
