// What a trained network does on data: which classes it mixes up, on which samples.

import { post } from "../api/http";
import type { Confusion, TrainedConfig, Trial } from "../api/records";
import { useResource } from "../api/resource";
import type { Parts } from "../app/App";
import { attempt } from "../app/notices";
import { Link, navigate, useParameter } from "../app/router";
import { useEditor } from "../editor/store";
import { PluginPanel } from "../plugins/PluginPanel";
import { useLiveTrial } from "../training/live";
import { TrialLine } from "../training/TrialLine";
import { percent } from "../ui/format";
import { Empty, Failure, Loading } from "../ui/parts";
import { ClassTable } from "./ClassTable";
import { ConfusionMatrix } from "./ConfusionMatrix";
import { ResultTable } from "./ResultTable";

export default function EvaluationPage({ parts }: { parts: Parts }) {
  const project = useEditor((state) => state.project?.id ?? "");
  return parts.trial === undefined ? (
    <Choice project={project} />
  ) : (
    <Evaluation key={parts.trial} id={parts.trial} />
  );
}

/** Evaluations there are, and trained networks that can be evaluated. */
function Choice({ project }: { project: string }) {
  const { data, error } = useResource<{ trials: Trial[] }>("/trials", { project, limit: 200 });
  if (error) return <Failure error={error} />;
  if (!data) return <Loading what="trials" />;
  const evaluated = data.trials.filter((trial) => trial.kind === "evaluate");
  const trained = data.trials.filter((trial) => trial.kind === "train" && trial.best !== null);
  return (
    <div className="page">
      <h1>Evaluation</h1>
      {trained.length === 0 && (
        <Empty title="Nothing is trained yet">
          <Link to={`/p/${project}/edit`}>Train the network</Link>, then see here what it gets wrong.
        </Empty>
      )}
      {trained.length > 0 && (
        <section>
          <h2>Evaluate on the validation set</h2>
          <ul className="lines">
            {trained.map((trial) => (
              <li key={trial.id}>
                <span>{trial.name || `Trial ${trial.number}`}</span>
                <span className="spread" />
                <button onClick={() => evaluate(trial)}>Evaluate</button>
              </li>
            ))}
          </ul>
        </section>
      )}
      {evaluated.length > 0 && (
        <section>
          <h2>Evaluations</h2>
          <ul className="lines">
            {evaluated.map((trial) => (
              <TrialLine key={trial.id} trial={trial} />
            ))}
          </ul>
        </section>
      )}
    </div>
  );
}

function evaluate(trial: Trial): void {
  attempt(async () => {
    const started = await post<Trial>(`/trials/${trial.id}/evaluate`, { weights: "best" });
    navigate(`/p/${trial.project}/eval/${started.id}`);
  });
}

function Evaluation({ id }: { id: string }) {
  const { trial, error } = useLiveTrial(id);
  const [cell, setCell] = useParameter("cell");
  const [row] = useParameter("row");
  const isDone = trial?.status === "finished";
  const { data } = useResource<Confusion>(isDone ? `/trials/${id}/confusion` : null);
  const full = useResource<Trial & { config: TrainedConfig }>(isDone ? `/trials/${id}` : null);

  if (error) return <Failure error={error} />;
  if (!trial) return <Loading what="the evaluation" />;
  if (trial.error) return <Failure error={trial.error} />;
  if (!isDone) {
    return <Empty title="Being evaluated">The results appear here when they are there.</Empty>;
  }
  return (
    <div className="evaluation">
      <div className="scroll matrix-side">
        {data ? (
          <>
            <dl className="facts headline">
              <dt>Accuracy</dt>
              <dd>{percent(data.accuracy)}</dd>
              <dt>Mean F1</dt>
              <dd>{percent(data.macro.f1)}</dd>
            </dl>
            <ConfusionMatrix confusion={data} cell={cell} open={setCell} />
            <ClassTable confusion={data} />
          </>
        ) : (
          <p className="muted">There is no confusion matrix: the task has no classes.</p>
        )}
      </div>
      <div className="centre">
        <ResultTable trial={trial} dataset={full.data?.config.dataset?.valid ?? ""} cell={cell} />
      </div>
      <aside aria-label="Explain">
        <PluginPanel trial={trial} row={row === null ? null : Number(row)} />
      </aside>
    </div>
  );
}
