// The numbers of a data set's columns.

import type { ColumnStats, Dataset } from "../api/records";
import { useResource } from "../api/resource";
import { Bars, type Bar } from "../ui/Bars";
import { count, measure } from "../ui/format";
import { Failure, Loading } from "../ui/parts";

export function Statistics({ dataset }: { dataset: Dataset }) {
  const { data, error, reload } = useResource<{ columns: ColumnStats[] }>(
    `/datasets/${dataset.id}/stats`,
  );
  if (error) return <Failure error={error} retry={reload} />;
  if (!data) return <Loading what="statistics" />;
  return (
    <div className="scroll statistics">
      {data.columns.map((column) => (
        <section key={column.name} className="panel group" aria-label={column.name}>
          <h2>
            {column.name} <span className="muted">{column.type}</span>
          </h2>
          <dl className="facts">
            {(["min", "max", "mean", "std"] as const).map((name) => (
              <Fact key={name} name={name} value={measure(column[name])} />
            ))}
            <Fact name="different" value={count(column.distinct)} />
          </dl>
          <Bars bars={barsOf(column)} />
        </section>
      ))}
    </div>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  );
}

function barsOf({ values, histogram }: ColumnStats): Bar[] {
  if (values) return values.map((one) => ({ name: String(one.value), value: one.count }));
  const { counts, edges } = histogram ?? { counts: [], edges: [] };
  return counts.map((value, index) => ({ name: measure(edges[index]), value }));
}
