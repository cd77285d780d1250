// The numbers of a data set's columns.

import type { ColumnStats, Dataset } from "../api/records";
import { useResource } from "../api/resource";
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

interface Bar {
  name: string;
  count: number;
}

function barsOf({ values, histogram }: ColumnStats): Bar[] {
  if (values) return values.map((one) => ({ name: String(one.value), count: one.count }));
  if (!histogram) return [];
  return histogram.counts.map((n, index) => ({ name: measure(histogram.edges[index]), count: n }));
}

const MAX_NAMES = 24;

function Bars({ bars }: { bars: Bar[] }) {
  if (bars.length === 0) return null;
  const most = Math.max(1, ...bars.map((bar) => bar.count));
  const text = bars.map((bar) => `${bar.name}: ${bar.count}`);
  return (
    <div className="bars" role="img" aria-label={text.join(", ")}>
      {bars.map((bar, index) => (
        <div key={index} title={text[index]}>
          <span className="bar" style={{ height: `${(bar.count / most) * 100}%` }} />
          {bars.length <= MAX_NAMES && <span className="name">{bar.name}</span>}
        </div>
      ))}
    </div>
  );
}
