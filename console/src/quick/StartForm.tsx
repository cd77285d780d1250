// Data, epochs and batches for the model that was dropped.

import { useState } from "react";
import { post } from "../api/http";
import type { Dataset, QuickReport, Trial } from "../api/records";
import { useResource } from "../api/resource";
import { attempt } from "../app/notices";
import { chooseFile, upload } from "../ui/files";
import { shape } from "../ui/format";
import { Field } from "../ui/parts";

interface StartFormProps {
  report: QuickReport;
  started: (trial: string) => void;
}

/** What the choice of a set that comes with scikit-learn begins with, in place of an id. */
const SAMPLE = "sample:";

export function StartForm({ report, started }: StartFormProps) {
  const { data, reload } = useResource<{ datasets: Dataset[] }>("/datasets");
  const samples = useResource<{ samples: { id: string; title: string }[] }>("/datasets/samples");
  const [chosen, choose] = useState("");
  const [epochs, setEpochs] = useState(3);
  const [batch, setBatch] = useState(32);
  const begin = async () => {
    const [dataset, valid] = await parts(chosen);
    const body = { file: report.file, dataset, valid, max_epoch: epochs, batch_size: batch };
    started((await post<Trial>("/quick/train", body)).id);
  };
  const bring = async () => {
    const file = await chooseFile(".zip,.csv");
    if (!file) return;
    const dataset = await upload<Dataset>("/datasets", file);
    reload();
    choose(dataset.id);
  };
  const [input] = report.inputs;
  const wanted = input?.shape.slice(1).join();
  const fits = (dataset: Dataset) => dataset.columns[0]?.shape?.join() === wanted;
  const sets = data?.datasets ?? [];
  const option = (dataset: Dataset) => (
    <option key={dataset.id} value={dataset.id}>
      {dataset.name}
      {dataset.columns[0]?.shape && ` · ${shape(dataset.columns[0].shape)}`}
    </option>
  );
  return (
    <form
      className="panel group"
      aria-label="Start"
      onSubmit={(event) => {
        event.preventDefault();
        attempt(begin);
      }}
    >
      <h2>Train it</h2>
      <div className="fields three">
        <Field label="Data set">
          <select value={chosen} onChange={(event) => choose(event.target.value)}>
            <option value="">choose</option>
            <optgroup label="As large as the input">{sets.filter(fits).map(option)}</optgroup>
            <optgroup label="Come with scikit-learn">
              {samples.data?.samples.map(({ id, title }) => (
                <option key={id} value={SAMPLE + id}>
                  {title}
                </option>
              ))}
            </optgroup>
            <optgroup label="Others">{sets.filter((one) => !fits(one)).map(option)}</optgroup>
          </select>
        </Field>
        <Field label="Epochs">
          <input
            type="number"
            min={1}
            value={epochs}
            onChange={(event) => setEpochs(Number(event.target.value))}
          />
        </Field>
        <Field label="Batch size">
          <input
            type="number"
            min={1}
            value={batch}
            onChange={(event) => setBatch(Number(event.target.value))}
          />
        </Field>
      </div>
      <div className="row">
        <button className="primary changes" disabled={chosen === ""}>
          Start
        </button>
        <button type="button" className="changes" onClick={() => attempt(bring)}>
          Bring a data set
        </button>
      </div>
    </form>
  );
}

/** The ids of what is trained and validated on; a sample has a set for each. */
async function parts(chosen: string): Promise<[string, string]> {
  if (!chosen.startsWith(SAMPLE)) return [chosen, chosen];
  const path = `/datasets/samples/${chosen.slice(SAMPLE.length)}`;
  const { datasets } = await post<{ datasets: Dataset[] }>(path);
  const [train, valid = train] = datasets.map((dataset) => dataset.id);
  return [train ?? "", valid ?? ""];
}
