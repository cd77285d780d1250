// A drawing by ECharts, which comes as a file of its own when the first one is shown.

import { HeatmapChart, LineChart, ScatterChart } from "echarts/charts";
import { DataZoomComponent, GridComponent, TooltipComponent, VisualMapComponent } from "echarts/components";
import * as echarts from "echarts/core";
import { CanvasRenderer } from "echarts/renderers";
import type { EChartsCoreOption } from "echarts/core";
import { useEffect, useRef } from "react";
import { color, useIsDark } from "../app/theme";

echarts.use([
  CanvasRenderer,
  DataZoomComponent,
  GridComponent,
  HeatmapChart,
  LineChart,
  ScatterChart,
  TooltipComponent,
  VisualMapComponent,
]);

export interface ChartProps {
  label: string;
  option: (colors: (name: string) => string) => EChartsCoreOption;
  /** What the option is made of: drawn again when one of them is another. */
  of: readonly unknown[];
  click?: (data: unknown) => void;
}

export default function Chart({ label, option, of, click }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const chart = useRef<echarts.ECharts | null>(null);
  const isDark = useIsDark();
  const latest = useRef({ option, click });
  latest.current = { option, click };

  useEffect(() => {
    if (!box.current) return;
    const created = echarts.init(box.current);
    created.on("click", (event) => latest.current.click?.(event.data));
    chart.current = created;
    const observer = new ResizeObserver(() => created.resize());
    observer.observe(box.current);
    return () => {
      observer.disconnect();
      created.dispose();
    };
  }, []);
  useEffect(() => {
    chart.current?.setOption(
      {
        animation: false,
        textStyle: { color: color("text"), fontFamily: "system-ui", fontSize: 11 },
        ...latest.current.option(color),
      },
      { notMerge: true },
    );
  }, [isDark, ...of]);
  return <div className="chart" role="img" aria-label={label} ref={box} />;
}
