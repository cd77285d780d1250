// What a trained network does on data: which classes it mixes up, on which samples.

import type { Confusion, Trial } from "../api/records";
import { useResource } from "../api/resource";
import type { Parts } from "../app/App";
import { attempt } from "../app/notices";
import { Link, useParameter } from "../app/router";
import { useEditor } from "../editor/store";
import { PluginPanel } from "../plugins/PluginPanel";
import { downloads } from "../training/downloads";
import { useLiveTrial } from "../training/live";
import { trialAddress } from "../training/start";
import { download } from "../ui/files";
import { measure, percent } from "../ui/format";
import { Empty, Failure, Loading, Menu } from "../ui/parts";
import { Choice } from "./Choice";
import { ClassTable } from "./ClassTable";
import { ConfusionMatrix } from "./ConfusionMatrix";
import { ResultTable, type Results } from "./ResultTable";

export default function EvaluationPage({ parts }: { parts: Parts }) {
  const project = useEditor((state) => state.project?.id ?? "");
  return parts.trial === undefined ? (
    <Choice project={project} />
  ) : (
    <Evaluation key={parts.trial} id={parts.trial} />
  );
}

function Evaluation({ id }: { id: string }) {
  const { trial, error } = useLiveTrial(id);
  const [row] = useParameter("row");
  if (error) return <Failure error={error} />;
  if (!trial) return <Loading what="the evaluation" />;
  if (trial.error) return <Failure error={trial.error} />;
  if (trial.status !== "finished") {
    return <Empty title="Being evaluated">The results appear here when they are there.</Empty>;
  }
  return (
    <div className="evaluation">
      <div className="scroll matrix-side">
        <Heading trial={trial} />
        <Matrix trial={trial} />
      </div>
      <div className="centre">
        <ResultTable trial={trial} />
      </div>
      <aside className="right" aria-label="Explain">
        <PluginPanel trial={trial} row={row === null ? null : Number(row)} />
      </aside>
    </div>
  );
}

/** What was evaluated, and its files. */
function Heading({ trial }: { trial: Trial }) {
  const source = trial.weights_from;
  const trained = source && "trial" in source ? source.trial : null;
  const name = trial.name || `Evaluation ${trial.number}`;
  const table = `/trials/${trial.id}/artifacts/output_result.csv`;
  return (
    <div className="row">
      <h1>{name}</h1>
      <span className="spread" />
      {trained !== null && (
        <Link to={trialAddress({ project: trial.project, id: trained, kind: "train" })}>Its training</Link>
      )}
      <Menu
        label="Download"
        items={[
          { label: "These results (.csv)", act: () => attempt(() => download(table)) },
          ...(trained === null ? [] : downloads(trained)),
        ]}
      />
    </div>
  );
}

/** Of a network that tells no classes. */
function Regression({ meanLoss }: { meanLoss: number | null }) {
  return (
    <>
      {meanLoss !== null && (
        <dl className="facts headline">
          <dt>Mean squared error</dt>
          <dd>{measure(meanLoss)}</dd>
        </dl>
      )}
      <p className="muted">
        No confusion matrix: this is no classification with whole numbers as labels.
      </p>
    </>
  );
}

function Matrix({ trial }: { trial: Trial }) {
  const results = useResource<Results>(`/trials/${trial.id}/results`, { limit: 1 });
  const isClassification = results.data?.is_classification ?? false;
  const path = isClassification ? `/trials/${trial.id}/confusion` : null;
  const confusion = useResource<Confusion>(path);
  const { data } = confusion;
  const [cell, setCell] = useParameter("cell");
  const [, setFrom] = useParameter("from");
  const [shares, setShares] = useParameter("shares");
  const error = results.error ?? confusion.error;
  if (error) return <Failure error={error} />;
  if (results.data && !isClassification) return <Regression meanLoss={results.data.mean_loss} />;
  if (!data) return <Loading what="the confusion matrix" />;
  return (
    <>
      <dl className="facts headline">
        <dt>Accuracy</dt>
        <dd>{percent(data.accuracy)}</dd>
        <dt>Mean F1</dt>
        <dd>{percent(data.macro.f1)}</dd>
      </dl>
      <label className="check">
        <input
          type="checkbox"
          checked={shares !== null}
          onChange={(event) => setShares(event.target.checked ? "1" : null)}
        />
        In percent of the row
      </label>
      <ConfusionMatrix
        confusion={data}
        shares={shares !== null}
        cell={cell}
        open={(next) => {
          setFrom(null);
          setCell(next);
        }}
      />
      <ClassTable confusion={data} />
    </>
  );
}
