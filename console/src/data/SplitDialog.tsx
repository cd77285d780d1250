// A data set as two: one to train with, one to validate with.

import { useState } from "react";
import { post } from "../api/http";
import type { Dataset } from "../api/records";
import { attempt } from "../app/notices";
import { Dialog, Field } from "../ui/parts";

interface SplitDialogProps {
  dataset: Dataset;
  close: () => void;
  done: (first: Dataset | undefined) => void;
}

export function SplitDialog({ dataset, close, done }: SplitDialogProps) {
  const [share, setShare] = useState(80);
  const [column, setColumn] = useState("");
  const [seed, setSeed] = useState(0);
  const split = async () => {
    const { datasets } = await post<{ datasets: Dataset[] }>(`/datasets/${dataset.id}/split`, {
      parts: [share / 100, (100 - share) / 100],
      seed,
      stratify: column || null,
      names: ["train", "valid"],
    });
    done(datasets[0]);
  };
  return (
    <Dialog title={`Split ${dataset.name}`} close={close}>
      <form
        className="fields"
        onSubmit={(event) => {
          event.preventDefault();
          attempt(split);
        }}
      >
        <Field label={`For training: ${share} % (${Math.round((dataset.rows * share) / 100)} rows)`}>
          <input
            type="range"
            min={5}
            max={95}
            step={5}
            value={share}
            onChange={(event) => setShare(Number(event.target.value))}
          />
        </Field>
        <Field label="The same share of every value of">
          <select value={column} onChange={(event) => setColumn(event.target.value)}>
            <option value="">no column</option>
            {dataset.columns.map(({ name }) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </Field>
        <Field label="Seed of the order">
          <input
            type="number"
            min={0}
            value={seed}
            onChange={(event) => setSeed(Number(event.target.value))}
          />
        </Field>
        <footer>
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button className="primary">Split</button>
        </footer>
      </form>
    </Dialog>
  );
}
