// Data, epochs and batches for the model that was dropped.

import { useState } from "react";
import { post } from "../api/http";
import type { Dataset, QuickReport, Trial } from "../api/records";
import { useResource } from "../api/resource";
import { attempt } from "../app/notices";
import { Field } from "../ui/parts";

interface StartFormProps {
  report: QuickReport;
  started: (trial: string) => void;
}

export function StartForm({ report, started }: StartFormProps) {
  const { data } = useResource<{ datasets: Dataset[] }>("/datasets");
  const [dataset, setDataset] = useState("");
  const [epochs, setEpochs] = useState(3);
  const [batch, setBatch] = useState(32);
  const begin = async () => {
    const body = { file: report.file, dataset, max_epoch: epochs, batch_size: batch };
    started((await post<Trial>("/quick/train", body)).id);
  };
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
          <select value={dataset} onChange={(event) => setDataset(event.target.value)}>
            <option value="">choose</option>
            {data?.datasets.map((one) => (
              <option key={one.id} value={one.id}>
                {one.name}
              </option>
            ))}
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
      <button className="primary" disabled={dataset === ""}>
        Start
      </button>
    </form>
  );
}
