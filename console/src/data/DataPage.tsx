// Data sets: bring one, look at its rows and its numbers, split it.

import { useState } from "react";
import { remove } from "../api/http";
import type { Dataset } from "../api/records";
import { useResource } from "../api/resource";
import type { Parts } from "../app/App";
import { attempt, done } from "../app/notices";
import { Link, navigate, useParameter } from "../app/router";
import { chooseFile, upload } from "../ui/files";
import { bytes, shape } from "../ui/format";
import { Empty, Failure, Loading, Menu, Tabs } from "../ui/parts";
import { RowTable } from "./RowTable";
import { SplitDialog } from "./SplitDialog";
import { Statistics } from "./Statistics";

export default function DataPage({ parts }: { parts: Parts }) {
  const { data, error, reload } = useResource<{ datasets: Dataset[] }>("/datasets");
  const [isBusy, setBusy] = useState(false);
  const chosen = data?.datasets.find((dataset) => dataset.id === parts.dataset);

  const bring = async (folders: boolean) => {
    const file = await chooseFile(folders ? ".zip" : ".zip,.csv");
    if (!file) return;
    setBusy(true);
    try {
      if (folders) {
        await upload("/datasets/build", file, { kind: "image_classification" });
      } else {
        const dataset = await upload<Dataset>("/datasets", file);
        navigate(`/data/${dataset.id}`);
      }
      reload();
    } finally {
      setBusy(false);
    }
  };
  return (
    <div className="two-columns">
      <aside className="left" aria-label="Data sets">
        <div className="section-head">
          <h1>Data sets</h1>
          <Menu
            label={isBusy ? "Reading …" : "Bring"}
            items={[
              { label: "A CSV, or a zip with one", act: () => attempt(() => bring(false)) },
              { label: "A zip with a folder per class", act: () => attempt(() => bring(true)) },
            ]}
          />
        </div>
        {error && <Failure error={error} retry={reload} />}
        {!data && !error && <Loading what="data sets" />}
        <ul className="scroll">
          {data?.datasets.map((dataset) => (
            <li key={dataset.id} className="trial" aria-current={dataset === chosen || undefined}>
              <Link to={`/data/${dataset.id}`} className="trial-name">
                {dataset.name}
              </Link>
              <span className={dataset.missing ? "bad" : "muted"}>
                {dataset.missing
                  ? "its files are gone"
                  : `${dataset.rows.toLocaleString("en")} rows · ${bytes(dataset.bytes)}`}
              </span>
            </li>
          ))}
        </ul>
      </aside>
      {chosen ? (
        <DatasetView key={chosen.id} dataset={chosen} changed={reload} />
      ) : (
        <div className="centre">
          {data && (
            <Empty title={data.datasets.length > 0 ? "Choose a data set" : "No data sets yet"}>
              Bring a CSV file, or a zip with a CSV and the pictures it names.
            </Empty>
          )}
        </div>
      )}
    </div>
  );
}

const VIEWS = [
  { id: "rows", title: "Rows" },
  { id: "statistics", title: "Statistics" },
] as const;

function DatasetView({ dataset, changed }: { dataset: Dataset; changed: () => void }) {
  const [view, setView] = useParameter("view");
  const [isSplitting, setSplitting] = useState(false);
  const isStatistics = view === "statistics";
  const discard = async () => {
    await remove(`/datasets/${dataset.id}`);
    done(`"${dataset.name}" is in the trash.`);
    navigate("/data");
    changed();
  };
  return (
    <div className="centre">
      <div className="network-bar">
        <Tabs
          label="View"
          tabs={VIEWS}
          current={isStatistics ? "statistics" : "rows"}
          choose={(id) => setView(id === "rows" ? null : id)}
        />
        <span className="muted">
          {dataset.columns
            .map((column) => `${column.name}: ${column.shape ? shape(column.shape) : column.type}`)
            .join(" · ")}
        </span>
        <button onClick={() => setSplitting(true)}>Split</button>
        {!dataset.builtin && (
          <button className="danger" onClick={() => attempt(discard)}>
            Delete
          </button>
        )}
      </div>
      {isStatistics ? <Statistics dataset={dataset} /> : <RowTable dataset={dataset} />}
      {isSplitting && (
        <SplitDialog
          dataset={dataset}
          close={() => setSplitting(false)}
          done={() => {
            setSplitting(false);
            changed();
          }}
        />
      )}
    </div>
  );
}
