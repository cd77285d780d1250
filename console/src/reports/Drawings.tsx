// What the rows of a report look like. The report itself says what can be drawn of it.

import { lazy } from "react";
import type { Report, ReportColumn, ReportPlot, ReportRow } from "../api/records";
import { Curves, type Curve } from "../training/Curves";
import { Bars, Counts } from "./Bars";
import { headOf, nameOf } from "./text";
import { pointsOption } from "./points";

const Chart = lazy(() => import("../ui/Chart"));

/** One drawing, with the rows that it shows and what their columns mean. */
export interface Drawn {
  plot: ReportPlot;
  rows: readonly ReportRow[];
  x: ReportColumn;
  y: ReportColumn;
}

export interface Group {
  label: string;
  points: [number, number][];
}

export function Drawings({ report }: { report: Report }) {
  const drawings = report.plots.flatMap((plot): Drawn[] => {
    const [x, y] = [plot.x, plot.y].map((name) => report.columns.find((c) => c.name === name));
    const rows = report.rows.filter((row) => isDrawn(plot, row));
    return x && y && rows.length > 0 ? [{ plot, rows, x, y }] : [];
  });
  const title = ({ x, y }: Drawn) => `${headOf(y)} over ${headOf(x)}`;
  const of = (form: ReportPlot["form"]) => drawings.filter(({ plot }) => plot.form === form);
  return (
    <>
      {of("counts").map((drawn) => (
        <Counts key={title(drawn)} {...drawn} />
      ))}
      {of("bars").map((drawn) => (
        <Bars key={title(drawn)} {...drawn} />
      ))}
      <div className="drawings">
        {of("lines").map((drawn) => (
          <Curves
            key={title(drawn)}
            title={title(drawn)}
            over={headOf(drawn.x)}
            curves={groups(drawn).map(curve)}
            logarithmic={false}
            smoothing={0}
          />
        ))}
      </div>
      {of("points").map((drawn) => (
        <figure key={title(drawn)} className="panel group" aria-label={title(drawn)}>
          <figcaption>{title(drawn)}</figcaption>
          <Chart
            label={title(drawn)}
            of={[report]}
            option={(colors) => pointsOption(groups(drawn), headOf(drawn.x), headOf(drawn.y), colors)}
          />
        </figure>
      ))}
    </>
  );
}

/** Rows that lack one of both are left out; lines and points need numbers. */
function isDrawn({ form, x, y }: ReportPlot, row: ReportRow): boolean {
  const [at, value] = [row[x] ?? null, row[y] ?? null];
  if (form === "counts") return at !== null && value !== null;
  if (form === "bars") return at !== null && typeof value === "number";
  return typeof at === "number" && typeof value === "number";
}

function groups({ plot, rows }: Drawn): Group[] {
  const named = Map.groupBy(rows, (row) => nameOf(row, rows, plot.by));
  return [...named].map(([label, own]) => {
    const points = own.map((row): [number, number] => [Number(row[plot.x]), Number(row[plot.y])]);
    return { label, points: points.sort((a, b) => a[0] - b[0]) };
  });
}

function curve({ label, points }: Group, color: number): Curve {
  return { label, color, x: points.map((p) => p[0]), y: points.map((p) => p[1]) };
}
