// The samples with what the network made of each.

import type { ResultRow, Trial } from "../api/records";
import { useResource } from "../api/resource";
import { useParameter } from "../app/router";
import { measure, percent } from "../ui/format";
import { Empty, Failure, Loading } from "../ui/parts";
import { CellView, Pager } from "../ui/Rows";

interface Results {
  columns: string[];
  rows: ResultRow[];
  total: number;
}

const LIMIT = 50;

interface ResultTableProps {
  trial: Trial;
  dataset: string;
  cell: string | null;
}

export function ResultTable({ trial, dataset, cell }: ResultTableProps) {
  const [from, setFrom] = useParameter("from");
  const [sort, setSort] = useParameter("order");
  const [chosen, choose] = useParameter("row");
  const offset = Number(from ?? 0) || 0;
  const { data, error, reload } = useResource<Results>(`/trials/${trial.id}/results`, {
    offset,
    limit: LIMIT,
    cell,
    sort: sort ?? "index",
  });
  if (error) return <Failure error={error} retry={reload} />;
  if (!data) return <Loading what="results" />;
  const isWrong = (row: ResultRow) =>
    row.label !== null && String(row.label) !== String(row.predicted);
  return (
    <>
      <Pager
        offset={offset}
        limit={LIMIT}
        total={data.total}
        go={(next) => setFrom(next > 0 ? String(next) : null)}
      >
        <select
          aria-label="Order"
          value={sort ?? "index"}
          onChange={(event) => {
            setFrom(null);
            setSort(event.target.value);
          }}
        >
          <option value="index">In order</option>
          <option value="-loss">Worst first</option>
        </select>
      </Pager>
      {data.rows.length === 0 && <Empty title="No sample is here" />}
      <div className="scroll">
        <table aria-label="Results">
          <thead>
            <tr>
              <th className="number">Row</th>
              {data.columns.map((column) => (
                <th key={column}>{column}</th>
              ))}
              <th>Label</th>
              <th>Predicted</th>
              <th className="number">Likelihood</th>
              <th className="number">Loss</th>
            </tr>
          </thead>
          <tbody>
            {data.rows.map((row) => (
              <tr
                key={row.index}
                aria-selected={chosen === String(row.index)}
                onClick={() => choose(String(row.index))}
              >
                <td className="number">
                  <button className="link" onClick={() => choose(String(row.index))}>
                    {row.index}
                  </button>
                </td>
                {row.cells.map((one, column) => (
                  <td key={column}>
                    <CellView
                      cell={one}
                      source={{ dataset, row: row.index, column: data.columns[column] ?? column }}
                    />
                  </td>
                ))}
                <td>{row.label ?? "–"}</td>
                <td className={isWrong(row) ? "bad" : undefined}>{row.predicted ?? "–"}</td>
                <td className="number">{percent(row.likelihood)}</td>
                <td className="number">{measure(row.loss)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
