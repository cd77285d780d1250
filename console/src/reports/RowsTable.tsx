// Rows of a report: filtered by a text, sorted by a column, so many at once as one can read.

import { useState } from "react";
import type { ReportRow, ReportValue } from "../api/records";
import { Pager } from "../ui/Rows";
import { columnsOf, valueText } from "./text";

const LIMIT = 100;

interface RowsTableProps {
  label: string;
  rows: readonly ReportRow[];
}

function before(a: ReportValue | undefined, b: ReportValue | undefined): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number" || typeof b === "number") return typeof a === "number" ? -1 : 1;
  return valueText(a).localeCompare(valueText(b), "en", { numeric: true });
}

export function RowsTable({ label, rows }: RowsTableProps) {
  const [text, setText] = useState("");
  const [offset, setOffset] = useState(0);
  const [order, setOrder] = useState<{ column: string; down: boolean } | null>(null);
  const columns = columnsOf(rows);
  const words = text.toLowerCase().split(" ").filter(Boolean);
  const found = rows.filter((row) => {
    const line = Object.values(row).map(valueText).join(" ").toLowerCase();
    return words.every((word) => line.includes(word));
  });
  if (order) {
    const sign = order.down ? -1 : 1;
    found.sort((a, b) => sign * before(a[order.column], b[order.column]));
  }
  const numeric = (column: string) => rows.some((row) => typeof row[column] === "number");
  const sortBy = (column: string) => {
    setOffset(0);
    setOrder({ column, down: order?.column === column && !order.down });
  };
  const direction = (column: string) => (order?.column !== column ? undefined : order.down ? "descending" : "ascending");
  return (
    <section className="panel">
      <Pager offset={offset} limit={LIMIT} total={found.length} go={setOffset}>
        <input
          aria-label={`Find in ${label}`}
          placeholder="Find: words of a row"
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            setOffset(0);
          }}
        />
      </Pager>
      <div className="scroll">
        <table aria-label={label}>
          <thead>
            <tr>
              {columns.map((column) => (
                <th
                  key={column}
                  className={numeric(column) ? "number" : undefined}
                  aria-sort={direction(column)}
                >
                  <button className="link" onClick={() => sortBy(column)}>
                    {column}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.slice(offset, offset + LIMIT).map((row, index) => (
              <tr key={offset + index}>
                {columns.map((column) => (
                  <td key={column} className={typeof row[column] === "number" ? "number" : undefined}>
                    {valueText(row[column])}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}
