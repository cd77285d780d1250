// A trained network is asked about one sample: a row of a data set, or a file.

import { useEffect, useState } from "react";
import { ApiError, post } from "../api/http";
import type { Answer, Dataset, Trial } from "../api/records";
import { useResource } from "../api/resource";
import type { Parts } from "../app/App";
import { attempt } from "../app/notices";
import { Link, useParameter } from "../app/router";
import { useEditor } from "../editor/store";
import { chooseFile, taking, upload } from "../ui/files";
import { measure } from "../ui/format";
import { Empty, Failure, Field, Loading } from "../ui/parts";
import { AnswerView } from "./AnswerView";

export default function InferencePage({ parts }: { parts: Parts }) {
  const project = useEditor((state) => state.project?.id ?? "");
  const { data, error } = useResource<{ trials: Trial[] }>("/trials", { project });
  const trained = data?.trials.filter((trial) => trial.kind === "train" && trial.best !== null);
  return (
    <div className="two-columns">
      <aside className="left" aria-label="Trained networks">
        <div className="section-head">
          <h1>Trained networks</h1>
        </div>
        {error && <Failure error={error} />}
        {!data && !error && <Loading what="trials" />}
        <ul className="scroll">
          {trained?.map((trial) => (
            <li key={trial.id} className="trial" aria-current={trial.id === parts.trial || undefined}>
              <Link to={`/p/${project}/infer/${trial.id}`} className="trial-name">
                {trial.name || `Trial ${trial.number}`}
              </Link>
              <span className="muted">
                {trial.best && `${trial.best.name} ${measure(trial.best.value)}`}
              </span>
            </li>
          ))}
        </ul>
      </aside>
      {parts.trial === undefined ? (
        <div className="centre">
          {trained && (
            <Empty title={trained.length > 0 ? "Choose a trained network" : "Nothing is trained yet"}>
              Then ask it about a row of a data set, or about a picture of your own.
            </Empty>
          )}
        </div>
      ) : (
        <Asked key={parts.trial} trial={parts.trial} />
      )}
    </div>
  );
}

function Asked({ trial }: { trial: string }) {
  const { data } = useResource<{ datasets: Dataset[] }>("/datasets");
  const [chosen, choose] = useParameter("data");
  const [rowText, setRow] = useParameter("row");
  // The file that was asked about, in place of a row.
  const [brought, setBrought] = useState<string | null>(null);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const dataset = data?.datasets.find((one) => one.id === chosen);
  const row = Number(rowText ?? 0) || 0;
  const id = dataset?.id;

  useEffect(() => {
    if (id === undefined) return;
    let isCurrent = true;
    post<Answer>(`/trials/${trial}/infer`, { dataset: id, row }).then(
      (found) => isCurrent && (setAnswer(found), setError(null), setBrought(null)),
      (reason: unknown) => {
        if (!(reason instanceof ApiError)) throw reason;
        if (isCurrent) setError(reason);
      },
    );
    return () => {
      isCurrent = false;
    };
  }, [trial, id, row]);

  const ask = async (file: File | null | undefined) => {
    if (!file) return;
    const found = await upload<Answer>(`/trials/${trial}/infer`, file);
    choose(null);
    setError(null);
    setAnswer(found);
    setBrought(file.name);
  };
  const last = (dataset?.rows ?? 1) - 1;
  return (
    <div
      className="centre scroll inference"
      {...taking((file) => attempt(() => ask(file)))}
    >
      <section className="panel group" aria-label="Sample">
        <div className="fields three">
          <Field label="Data set">
            <select value={chosen ?? ""} onChange={(event) => choose(event.target.value || null)}>
              <option value="">choose</option>
              {data?.datasets.map((one) => (
                <option key={one.id} value={one.id}>
                  {one.name}
                </option>
              ))}
            </select>
          </Field>
          <Field label="Row">
            <input
              type="number"
              min={0}
              max={last}
              value={row}
              disabled={!dataset}
              onChange={(event) => setRow(String(Math.min(last, Math.max(0, Number(event.target.value)))))}
            />
          </Field>
          <button
            onClick={() => attempt(async () => ask(await chooseFile("image/*,.npy,.csv")))}
          >
            A file of mine
          </button>
        </div>
        {brought !== null && <p className="mono">{brought}</p>}
        {answer?.inputs.map(
          (input) =>
            input.picture && (
              <img key={input.name} className="sample" src={input.picture} alt={input.name} />
            ),
        )}
        {dataset && <Cells dataset={dataset} row={row} />}
      </section>
      {error && <Failure error={error} />}
      {answer && !error && <AnswerView answer={answer} />}
    </div>
  );
}

/** What stands in the row, the label too. */
function Cells({ dataset, row }: { dataset: Dataset; row: number }) {
  const { data } = useResource<{ rows: { cells: { text: string }[] }[]; header: string[] }>(
    `/datasets/${dataset.id}/rows`,
    { offset: row, limit: 1 },
  );
  return (
    <dl className="facts">
      {data?.header.map((name, index) => (
        <div key={name} className="fact">
          <dt>{name}</dt>
          <dd className="mono">{data.rows[0]?.cells[index]?.text}</dd>
        </div>
      ))}
    </dl>
  );
}
