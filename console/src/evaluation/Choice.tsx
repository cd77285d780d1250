// Evaluations there are, and trained networks that can be evaluated.

import { useState } from "react";
import type { Dataset, Trial } from "../api/records";
import { useResource } from "../api/resource";
import { Link } from "../app/router";
import { evaluate } from "../training/actions";
import { TrialLine } from "../training/TrialLine";
import { measure } from "../ui/format";
import { Empty, Failure, Field, Loading } from "../ui/parts";

export function Choice({ project }: { project: string }) {
  const { data, error } = useResource<{ trials: Trial[] }>("/trials", { project, limit: 200 });
  if (error) return <Failure error={error} />;
  if (!data) return <Loading what="trials" />;
  const evaluated = data.trials.filter((trial) => trial.kind === "evaluate");
  const trained = data.trials.filter((trial) => trial.kind === "train" && trial.best !== null);
  return (
    <div className="page">
      <h1>Evaluation</h1>
      {trained.length === 0 ? (
        <Empty title="Nothing is trained yet">
          <Link to={`/p/${project}/edit`}>Train the network</Link>, then see here what it gets wrong.
        </Empty>
      ) : (
        <Trained trials={trained} />
      )}
      {evaluated.length > 0 && (
        <section aria-label="Evaluations">
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

function Trained({ trials }: { trials: readonly Trial[] }) {
  const datasets = useResource<{ datasets: Dataset[] }>("/datasets").data?.datasets ?? [];
  const [dataset, setDataset] = useState("");
  const [weights, setWeights] = useState("best");
  return (
    <section aria-label="Trained networks">
      <h2>Evaluate</h2>
      <div className="fields three">
        <Field label="Data set">
          <select value={dataset} onChange={(event) => setDataset(event.target.value)}>
            <option value="">the validation set</option>
            {datasets.map(({ id, name, rows }) => (
              <option key={id} value={id}>
                {name} ({rows.toLocaleString("en")} rows)
              </option>
            ))}
          </select>
        </Field>
        <Field label="Weights">
          <select value={weights} onChange={(event) => setWeights(event.target.value)}>
            <option value="best">the best</option>
            <option value="last">the last</option>
          </select>
        </Field>
      </div>
      <ul className="lines">
        {trials.map((trial) => (
          <li key={trial.id}>
            <span>{trial.name || `Trial ${trial.number}`}</span>
            <span className="spread" />
            <span className="muted">
              {trial.best?.name} {measure(trial.best?.value)}
            </span>
            <button
              className="changes"
              aria-label={`Evaluate trial ${trial.number}`}
              onClick={() => evaluate(trial, dataset || null, weights)}
            >
              Evaluate
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
