// Reports of `nnl bench`: those of the folder, one of them, or what changed between two.

import type { ReportHead } from "../api/records";
import { useResource } from "../api/resource";
import type { Parts } from "../app/App";
import { attempt } from "../app/notices";
import { Link, navigate, useParameter } from "../app/router";
import { chooseFile, upload } from "../ui/files";
import { Empty, Failure, Loading } from "../ui/parts";
import { Comparison } from "./Comparison";
import { ReportView } from "./ReportView";
import { titleOf } from "./text";

export default function ReportsPage({ parts }: { parts: Parts }) {
  const { data, error, reload } = useResource<{ reports: ReportHead[]; folder: string }>("/reports");
  const [against, compareWith] = useParameter("with");
  const bring = async () => {
    const file = await chooseFile(".json");
    if (!file) return;
    const report = await upload<ReportHead>("/reports", file);
    reload();
    navigate(`/reports/${report.id}`);
  };
  const shown = data?.reports.find((report) => report.id === parts.report);
  const other = data?.reports.find((report) => report.id === against);
  return (
    <div className="two-columns">
      <aside className="left" aria-label="Reports">
        <div className="section-head">
          <h1>Reports</h1>
          <button className="changes" onClick={() => attempt(bring)}>Bring</button>
        </div>
        {error && <Failure error={error} retry={reload} />}
        {!data && !error && <Loading what="reports" />}
        <ul className="scroll">
          {data?.reports.map((report) => (
            <li key={report.id} className="trial" aria-current={report === shown || undefined}>
              <Link to={`/reports/${report.id}`} className="trial-name">
                {titleOf(report)}
              </Link>
              <span className="muted">
                {report.backends.join(", ")} · {report.created.replace("T", " ").slice(0, 16)}
              </span>
              {shown && report !== shown && report.kind === shown.kind && (
                <button
                  className="link"
                  aria-pressed={report === other}
                  aria-label={`Compare with ${titleOf(report)} ${report.id}`}
                  onClick={() => compareWith(report === other ? null : report.id)}
                >
                  {report === other ? "Do not compare" : "Compare with it"}
                </button>
              )}
            </li>
          ))}
        </ul>
      </aside>
      <div className="centre scroll">
        {shown && other ? (
          <Comparison first={other} second={shown} />
        ) : parts.report !== undefined ? (
          <ReportView key={parts.report} id={parts.report} />
        ) : (
          data && (
            <Empty title={data.reports.length > 0 ? "Choose a report" : "No reports yet"}>
              <p>A report is what a benchmark writes:</p>
              <pre className="mono">nnl bench network lenet --json {data.folder}/lenet.json</pre>
            </Empty>
          )
        )}
      </div>
    </div>
  );
}
