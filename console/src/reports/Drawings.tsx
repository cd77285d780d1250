// What the rows of a report look like: trainings as curves, times as bars, tests as shares.

import type { ReportRow } from "../api/records";
import { Curves, type Curve } from "../training/Curves";
import { measure } from "../ui/format";
import { nameOf } from "./text";

export function Drawings({ rows }: { rows: readonly ReportRow[] }) {
  return (
    <>
      <Trainings rows={rows} />
      <Times rows={rows} />
      <Outcomes rows={rows} />
    </>
  );
}

const OVER = { samples: "samples", train_s: "seconds" } as const;
const MEASURED = { accuracy: "Accuracy", loss: "Loss" } as const;

/** Accuracy and loss, each over samples and over seconds. */
function Trainings({ rows }: { rows: readonly ReportRow[] }) {
  const epochs = rows.filter((row) => typeof row.samples === "number" && "epoch" in row);
  const runs = Map.groupBy(epochs, (row) => nameOf(row, epochs));
  if (runs.size === 0) return null;
  const drawings = Object.entries(MEASURED).flatMap(([y, title]) =>
    Object.entries(OVER).map(([x, over]) => {
      const curves = [...runs].map(([label, points], color) => curve(label, points, x, y, color));
      return { title: `${title} over ${over}`, over, curves: curves.filter(({ x }) => x.length > 0) };
    }),
  );
  return (
    <div className="drawings">
      {drawings
        .filter(({ curves }) => curves.length > 0)
        .map((drawing) => (
          <Curves key={drawing.title} {...drawing} logarithmic={false} smoothing={0} />
        ))}
    </div>
  );
}

function curve(label: string, rows: readonly ReportRow[], x: string, y: string, color: number): Curve {
  const points = rows.flatMap((row): [number, number][] => {
    const [at, value] = [row[x], row[y]];
    return typeof at === "number" && typeof value === "number" ? [[at, value]] : [];
  });
  points.sort((a, b) => a[0] - b[0]);
  return { label, color, x: points.map((p) => p[0]), y: points.map((p) => p[1]) };
}

const MAX_BARS = 60;

/** Medians with their intervals. */
function Times({ rows }: { rows: readonly ReportRow[] }) {
  const timed = rows.flatMap((row) =>
    typeof row.median_s === "number" && row.test === undefined ? [{ row, median: row.median_s }] : [],
  );
  if (timed.length === 0 || timed.length > MAX_BARS) return null;
  const all = timed.map(({ row }) => row);
  const most = Math.max(...timed.map(({ row, median }) => Number(row.high_s ?? median)));
  const share = (seconds: number) => `${(seconds / most) * 100}%`;
  return (
    <figure className="panel group" aria-label="Times">
      <figcaption>Milliseconds: median and its 95 % interval</figcaption>
      <table className="bar-table">
        <tbody>
          {timed.map(({ row, median }, index) => {
            const [low, high] = [Number(row.low_s ?? median), Number(row.high_s ?? median)];
            return (
              <tr key={index}>
                <th scope="row">{nameOf(row, all)}</th>
                <td className="bar-cell">
                  <span className="bar" style={{ width: share(median) }} />
                  <span className="interval" style={{ left: share(low), width: share(high - low) }} />
                </td>
                <td className="number">{measure(median * 1000)}</td>
                <td className="number muted">
                  {measure(low * 1000)} to {measure(high * 1000)}
                </td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </figure>
  );
}

/** How many tests of every back end passed, and what came of the others. */
function Outcomes({ rows }: { rows: readonly ReportRow[] }) {
  const tests = rows.filter((row) => row.test !== undefined && row.status !== undefined);
  if (tests.length === 0) return null;
  const backends = [...Map.groupBy(tests, (row) => String(row.backend))];
  const statuses = [...new Set(tests.map((row) => String(row.status)))].sort();
  return (
    <figure className="panel group" aria-label="Tests">
      <figcaption>Tests by what came of them</figcaption>
      <table className="bar-table" aria-label="Tests">
        <thead>
          <tr>
            <th>Back end</th>
            <th />
            {statuses.map((status) => (
              <th key={status} className="number">
                {status}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {backends.map(([backend, own]) => {
            const count = (status: string) => own.filter((row) => row.status === status).length;
            return (
              <tr key={backend}>
                <th scope="row">{backend}</th>
                <td className="bar-cell">
                  {statuses.map((status) => (
                    <span
                      key={status}
                      className="bar"
                      data-status={status}
                      title={`${status}: ${count(status)}`}
                      style={{ width: `${(count(status) / own.length) * 100}%` }}
                    />
                  ))}
                </td>
                {statuses.map((status) => (
                  <td key={status} className="number">
                    {count(status)}
                  </td>
                ))}
              </tr>
            );
          })}
        </tbody>
      </table>
    </figure>
  );
}
