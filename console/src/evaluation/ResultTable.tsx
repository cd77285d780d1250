// The samples with what the network made of each.

import { Fragment, useState, type MouseEvent } from "react";
import type { Plugin, ResultRow, Trial } from "../api/records";
import { useResource } from "../api/resource";
import { useParameter } from "../app/router";
import { Bars } from "../ui/Bars";
import { measure, percent } from "../ui/format";
import { ContextMenu, Empty, Failure, Loading } from "../ui/parts";
import { CellView, Pager, variableOf } from "../ui/Rows";

export interface Results {
  columns: string[];
  dataset: string;
  rows: ResultRow[];
  total: number;
  output: string;
  is_classification: boolean;
  mean_loss: number | null;
}

const LIMIT = 50;
/** Of more outputs no drawing shows anything. */
const MAX_BARS = 200;
const MAX_VALUES = 4;

export function ResultTable({ trial }: { trial: Trial }) {
  const [cell, setCell] = useParameter("cell");
  const [from, setFrom] = useParameter("from");
  const [sort, setSort] = useParameter("order");
  const [chosen, choose] = useParameter("row");
  const [, explain] = useParameter("plugin");
  const [menu, setMenu] = useState<{ x: number; y: number } | null>(null);
  const known = useResource<{ plugins: Plugin[] }>(menu && "/plugins");
  const plugins = known.data?.plugins.filter(({ scope }) => scope === "row") ?? [];
  const offset = Number(from ?? 0) || 0;
  const { data, error, reload } = useResource<Results>(`/trials/${trial.id}/results`, {
    offset,
    limit: LIMIT,
    cell,
    sort: sort ?? "index",
  });
  if (error) return <Failure error={error} retry={reload} />;
  if (!data) return <Loading what="results" />;
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
        {cell !== null && (
          <button
            onClick={() => {
              setFrom(null);
              setCell(null);
            }}
          >
            {cell.replace(",", " taken for ")} ×
          </button>
        )}
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
              {data.is_classification ? (
                <>
                  <th>Label</th>
                  <th>Predicted</th>
                  <th className="number">Of the label</th>
                  <th className="number">Loss</th>
                </>
              ) : (
                <>
                  <th className="number">{data.output}</th>
                  <th className="number">Squared error</th>
                </>
              )}
            </tr>
          </thead>
          <tbody>
            {data.rows.map((row) => {
              const isChosen = chosen === String(row.index);
              return (
                <Fragment key={row.index}>
                  <Sample
                    data={data}
                    row={row}
                    isChosen={isChosen}
                    choose={() => choose(isChosen ? null : String(row.index))}
                    ask={(event) => {
                      event.preventDefault();
                      choose(String(row.index));
                      setMenu({ x: event.clientX, y: event.clientY });
                    }}
                  />
                  {isChosen && hasMore(row) && <Closer data={data} row={row} />}
                </Fragment>
              );
            })}
          </tbody>
        </table>
      </div>
      {menu && plugins.length > 0 && (
        <ContextMenu
          label="Explain"
          at={menu}
          close={() => setMenu(null)}
          items={plugins.map(({ id, title }) => ({ label: title, act: () => explain(id) }))}
        />
      )}
    </>
  );
}

interface SampleProps {
  data: Results;
  row: ResultRow;
  isChosen: boolean;
  choose: () => void;
  ask: (event: MouseEvent) => void;
}

function Sample({ data, row, isChosen, choose, ask }: SampleProps) {
  const isWrong = row.label !== null && row.label !== row.predicted;
  return (
    <tr aria-selected={isChosen} data-row={row.index} onClick={choose} onContextMenu={ask}>
      <td className="number">
        <button className="link" aria-expanded={isChosen} aria-label={`Row ${row.index}`}>
          {row.index}
        </button>
      </td>
      <Cells data={data} row={row} />
      {data.is_classification ? (
        <>
          <td>{row.label ?? "–"}</td>
          <td className={isWrong ? "bad" : undefined}>{row.predicted ?? "–"}</td>
          <td className="number">{percent(row.likelihood)}</td>
        </>
      ) : (
        <td className="number" title={row.outputs.slice(0, MAX_BARS).join(", ")}>
          {row.outputs.slice(0, MAX_VALUES).map(measure).join(", ")}
          {row.outputs.length > MAX_VALUES && ", …"}
        </td>
      )}
      <td className="number">{measure(row.loss)}</td>
    </tr>
  );
}

function Cells({ data, row }: { data: Results; row: ResultRow }) {
  return row.cells.map((cell, index) => (
    <td key={index}>
      <CellView
        cell={cell}
        source={{ dataset: data.dataset, row: row.index, column: variableOf(data.columns[index]) }}
      />
    </td>
  ));
}

/** Whether there is more of a sample than stands in its row. */
function hasMore(row: ResultRow): boolean {
  return row.outputs.length > 1 || row.cells.some((cell) => cell.kind === "image");
}

/** The chosen sample in large, and all that the network said of it. */
function Closer({ data, row }: { data: Results; row: ResultRow }) {
  const images = row.cells.flatMap((cell, index) =>
    cell.kind === "image" ? [{ cell, column: variableOf(data.columns[index]) }] : [],
  );
  const bars = row.outputs.map((value, index) => ({ name: String(index), value }));
  return (
    <tr className="closer">
      <td colSpan={data.columns.length + 5}>
        <div className="row">
          {images.map(({ cell, column }) => (
            <CellView
              key={column}
              cell={cell}
              source={{ dataset: data.dataset, row: row.index, column }}
              large
            />
          ))}
          {bars.length > 1 && bars.length <= MAX_BARS && <Bars bars={bars} />}
        </div>
      </td>
    </tr>
  );
}
