// Rows of a report: filtered by a text, sorted by a column, so many at once as one can read.

import { useState } from "react";
import type { ReportTable, ReportValue } from "../api/records";
import { Pager } from "../ui/Rows";
import { headOf, valueText } from "./text";

const LIMIT = 100;

interface RowsTableProps extends ReportTable {
  label: string;
}

function before(a: ReportValue | undefined, b: ReportValue | undefined): number {
  if (typeof a === "number" && typeof b === "number") return a - b;
  if (typeof a === "number" || typeof b === "number") return typeof a === "number" ? -1 : 1;
  return valueText(a).localeCompare(valueText(b), "en", { numeric: true });
}

export function RowsTable({ label, rows, columns }: RowsTableProps) {
  const [text, setText] = useState("");
  const [offset, setOffset] = useState(0);
  const [order, setOrder] = useState<{ column: string; down: boolean } | null>(null);
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
  const direction = (column: string) => {
    if (order?.column !== column) return undefined;
    return order.down ? "descending" : "ascending";
  };
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
                  key={column.name}
                  className={numeric(column.name) ? "number" : undefined}
                  aria-sort={direction(column.name)}
                >
                  <button className="link" title={column.name} onClick={() => sortBy(column.name)}>
                    {headOf(column)}
                  </button>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.slice(offset, offset + LIMIT).map((row, index) => (
              <tr key={offset + index}>
                {columns.map(({ name }) => (
                  <td key={name} className={typeof row[name] === "number" ? "number" : undefined}>
                    {valueText(row[name])}
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
