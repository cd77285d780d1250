// The rows of a data set with their pictures.

import type { Cell, Dataset } from "../api/records";
import { useResource } from "../api/resource";
import { useParameter } from "../app/router";
import { Failure, Loading } from "../ui/parts";
import { CellView, Pager, variableOf } from "../ui/Rows";

const LIMIT = 50;

export function RowTable({ dataset }: { dataset: Dataset }) {
  const [from, setFrom] = useParameter("from");
  const offset = Number(from ?? 0) || 0;
  const { data, error, reload } = useResource<{
    header: string[];
    rows: { index: number; cells: Cell[] }[];
    total: number;
  }>(`/datasets/${dataset.id}/rows`, { offset, limit: LIMIT });
  if (error) return <Failure error={error} retry={reload} />;
  if (!data) return <Loading what="rows" />;
  return (
    <>
      <Pager
        offset={offset}
        limit={LIMIT}
        total={data.total}
        go={(next) => setFrom(next > 0 ? String(next) : null)}
      />
      <div className="scroll">
        <table aria-label="Rows">
          <thead>
            <tr>
              <th className="number">Row</th>
              {data.header.map((column) => (
                <th key={column}>{column}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {data.rows.map((row) => (
              <tr key={row.index}>
                <td className="number muted">{row.index}</td>
                {row.cells.map((cell, column) => (
                  <td key={column}>
                    <CellView
                      cell={cell}
                      source={{
                        dataset: dataset.id,
                        row: row.index,
                        column: variableOf(data.header[column]),
                      }}
                    />
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
