// From a model file to a training that runs: drop it, see what is supported, choose data, start.

import { useState } from "react";
import { ApiError } from "../api/http";
import type { QuickReport } from "../api/records";
import { attempt } from "../app/notices";
import { chooseFile, upload } from "../ui/files";
import { count, shape } from "../ui/format";
import { Failure } from "../ui/parts";
import { Progress } from "./Progress";
import { StartForm } from "./StartForm";

const FILES = ".onnx,.nnp,.nntxt,.prototxt,.nnlp";

export default function QuickPage() {
  const [report, setReport] = useState<QuickReport | null>(null);
  const [name, setName] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const [isOver, setOver] = useState(false);
  const [trial, setTrial] = useState<string | null>(null);

  const inspect = async (file: File | null | undefined) => {
    if (!file) return;
    setError(null);
    setReport(null);
    setTrial(null);
    setName(file.name);
    try {
      setReport(await upload<QuickReport>("/quick/inspect", file));
    } catch (reason) {
      if (!(reason instanceof ApiError)) throw reason;
      setError(reason);
    }
  };
  return (
    <div className="page quick">
      <h1>Quick: from a model file to a training</h1>
      <button
        className={isOver ? "drop over" : "drop"}
        onDragOver={(event) => {
          event.preventDefault();
          setOver(true);
        }}
        onDragLeave={() => setOver(false)}
        onDrop={(event) => {
          event.preventDefault();
          setOver(false);
          const [file] = event.dataTransfer.files;
          attempt(() => inspect(file));
        }}
        onClick={() => attempt(async () => inspect(await chooseFile(FILES)))}
      >
        <strong>{name || "Drop a model here, or click to choose one"}</strong>
        <span className="muted">ONNX, NNP, NNTXT</span>
      </button>
      {error && <Failure error={error} />}
      {report && <Report report={report} />}
      {report?.supported && <StartForm report={report} started={setTrial} />}
      {trial && <Progress id={trial} />}
    </div>
  );
}

function Report({ report }: { report: QuickReport }) {
  const wrong = report.functions.filter((one) => !one.supported);
  const total = report.functions.reduce((sum, one) => sum + one.count, 0);
  const list = (ends: QuickReport["inputs"]) =>
    ends.map((end) => `${end.name} ${shape(end.shape)}`).join(", ");
  return (
    <section className="panel group" aria-label="Report">
      <h2 className={report.supported ? "good" : "bad"}>
        {report.supported
          ? `All ${total} functions are supported`
          : `Not supported: ${wrong.map((one) => one.type).join(", ")}`}
      </h2>
      <dl className="facts">
        <dt>Format</dt>
        <dd>{report.format}</dd>
        <dt>Inputs</dt>
        <dd>{list(report.inputs)}</dd>
        <dt>Outputs</dt>
        <dd>{list(report.outputs)}</dd>
        <dt>Parameters</dt>
        <dd>{count(report.parameters)}</dd>
        <dt>Multiply-adds</dt>
        <dd>{count(report.multiply_adds)}</dd>
      </dl>
      {report.report.map((line, index) => (
        <p key={index} className={line.severity === "error" ? "bad" : "warn"}>
          {line.message}
        </p>
      ))}
      <details open={wrong.length > 0}>
        <summary className="muted">Functions</summary>
        <table aria-label="Functions">
          <tbody>
            {[...wrong, ...report.functions.filter((one) => one.supported)].map((one) => (
              <tr key={one.type}>
                <td className={one.supported ? "good" : "bad"}>{one.supported ? "✓" : "×"}</td>
                <td className="mono">{one.type}</td>
                <td className="number">{one.count}</td>
                <td className="muted">{one.reason}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </section>
  );
}
