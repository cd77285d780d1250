// Two reports: what is not the same of where they were made, and every measurement of both.

import { useState } from "react";
import type { ReportHead, ReportTable } from "../api/records";
import { useResource } from "../api/resource";
import { Empty, Failure, Loading } from "../ui/parts";
import { RowsTable } from "./RowsTable";
import { titleOf } from "./text";

interface ComparisonProps {
  first: ReportHead;
  second: ReportHead;
}

/** As much must a number have changed to be listed at first. */
const LEAST = 1.1;

export function Comparison({ first, second }: ComparisonProps) {
  const { data, error, reload } = useResource<ReportTable>("/reports/compare", {
    first: first.id,
    second: second.id,
  });
  const [least, setLeast] = useState(LEAST);
  if (error) return <Failure error={error} retry={reload} />;
  if (!data) return <Loading what="both reports" />;
  const rows = data.rows.filter((row) => {
    if (typeof row.ratio !== "number") return row.first !== row.second;
    return row.ratio >= least || row.ratio <= 1 / least;
  });
  return (
    <div className="report">
      <h2>
        {titleOf(second)}: {second.id} against {first.id}
      </h2>
      <Places first={first} second={second} />
      <label className="row">
        <span className="muted">Changes by a factor of at least</span>
        <input
          type="number"
          min={1}
          step={0.05}
          value={least}
          onChange={(event) => setLeast(Math.max(1, Number(event.target.value)))}
        />
        <span className="muted">
          {rows.length} of {data.rows.length} numbers
        </span>
      </label>
      {rows.length === 0 ? (
        <Empty title="Nothing has changed that much" />
      ) : (
        <RowsTable key={least} label="Changes" rows={rows} columns={data.columns} />
      )}
    </div>
  );
}

/** What of versions, hardware and settings is another. */
function Places({ first, second }: ComparisonProps) {
  const flat = (report: ReportHead): Record<string, unknown> => ({
    created: report.created,
    ...report.settings,
    ...report.hardware,
    ...report.versions,
  });
  const [a, b] = [flat(first), flat(second)];
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])];
  const differ = names.filter((name) => JSON.stringify(a[name]) !== JSON.stringify(b[name]));
  return (
    <section className="panel">
      <table aria-label="What differs">
        <thead>
          <tr>
            <th />
            <th>{first.id}</th>
            <th>{second.id}</th>
          </tr>
        </thead>
        <tbody>
          {differ.map((name) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td className="mono">{String(a[name] ?? "–")}</td>
              <td className="mono">{String(b[name] ?? "–")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
