// One report: what it is about, its drawings, its rows.

import type { Report } from "../api/records";
import { useResource } from "../api/resource";
import { Failure, Loading } from "../ui/parts";
import { Drawings } from "./Drawings";
import { RowsTable } from "./RowsTable";
import { titleOf } from "./text";

export function ReportView({ id }: { id: string }) {
  const { data, error, reload } = useResource<Report>(`/reports/${id}`);
  if (error) return <Failure error={error} retry={reload} />;
  if (!data) return <Loading what="the report" />;
  return (
    <div className="report">
      <h2>{titleOf(data)}</h2>
      {data.ended !== "done" && <p className="warn">It has ended before: {data.ended}.</p>}
      <div className="split">
        <Facts
          label="Report"
          facts={{ id: data.id, created: data.created, command: `nnl ${data.command}` }}
        />
        <Facts label="Made with" facts={{ ...data.hardware, ...data.versions }} />
      </div>
      <Drawings report={data} />
      <RowsTable label="Rows" {...data} />
    </div>
  );
}

function Facts({ label, facts }: { label: string; facts: Record<string, unknown> }) {
  return (
    <section className="panel group" aria-label={label}>
      <dl className="facts">
        {Object.entries(facts).map(([name, value]) => (
          <div key={name} className="fact">
            <dt>{name}</dt>
            <dd className="mono">{String(value)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
