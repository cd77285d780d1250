// Data sets: bring one, look at its rows and its numbers, split it.

import { useState } from "react";
import { post, remove } from "../api/http";
import type { Dataset, DataSample } from "../api/records";
import { useResource } from "../api/resource";
import type { Parts } from "../app/App";
import { attempt, done } from "../app/notices";
import { Link, navigate, useParameter } from "../app/router";
import { chooseFile, taking, upload } from "../ui/files";
import { bytes, shape } from "../ui/format";
import { Empty, Failure, Loading, Menu, Tabs } from "../ui/parts";
import { BuildDialog, type BuildKind } from "./BuildDialog";
import { RowTable } from "./RowTable";
import { SplitDialog } from "./SplitDialog";
import { Statistics } from "./Statistics";

export default function DataPage({ parts }: { parts: Parts }) {
  const { data, error, reload } = useResource<{ datasets: Dataset[] }>("/datasets");
  const samples = useResource<{ samples: DataSample[] }>("/datasets/samples").data?.samples ?? [];
  const [isBusy, setBusy] = useState(false);
  const [building, setBuilding] = useState<BuildKind | null>(null);
  const chosen = data?.datasets.find((dataset) => dataset.id === parts.dataset);

  const show = (dataset: Dataset | undefined) => {
    if (dataset) navigate(`/data/${dataset.id}`);
    reload();
  };
  const bring = (read: () => Promise<Dataset | undefined>) =>
    attempt(async () => {
      setBusy(true);
      try {
        show(await read());
      } finally {
        setBusy(false);
      }
    });
  const bringFile = (given?: File) =>
    attempt(async () => {
      const file = given ?? (await chooseFile(".zip,.csv"));
      if (file) bring(() => upload<Dataset>("/datasets", file));
    });
  const bringSample = (id: string) =>
    bring(async () => (await post<{ datasets: Dataset[] }>(`/datasets/samples/${id}`)).datasets[0]);
  return (
    <div className="two-columns" {...taking(bringFile)}>
      <aside className="left" aria-label="Data sets">
        <div className="section-head">
          <h1>Data sets</h1>
          <Menu
            className="changes"
            label={isBusy ? "Reading …" : "Bring"}
            items={[
              { label: "A CSV, or a zip with one", act: () => bringFile() },
              { label: "Pictures, a folder per class", act: () => setBuilding("image_classification") },
              { label: "Pictures with boxes", act: () => setBuilding("object_detection") },
              ...samples.map(({ id, title }) => ({ label: `Sample: ${title}`, act: () => bringSample(id) })),
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
      {building && (
        <BuildDialog
          kind={building}
          close={() => setBuilding(null)}
          done={([first]) => {
            setBuilding(null);
            show(first);
          }}
        />
      )}
      {chosen ? (
        <DatasetView key={chosen.id} dataset={chosen} show={show} />
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

interface DatasetViewProps {
  dataset: Dataset;
  /** Shows another one, which the list may not have yet; the list where there is none. */
  show: (dataset: Dataset | undefined) => void;
}

function DatasetView({ dataset, show }: DatasetViewProps) {
  const [view, setView] = useParameter("view");
  const [isSplitting, setSplitting] = useState(false);
  const isStatistics = view === "statistics";
  const discard = async () => {
    await remove(`/datasets/${dataset.id}`);
    done(`"${dataset.name}" is in the trash.`);
    navigate("/data");
    show(undefined);
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
        <button className="changes" onClick={() => setSplitting(true)}>Split</button>
        <button className="danger changes" onClick={() => attempt(discard)}>
          Delete
        </button>
      </div>
      {isStatistics ? <Statistics dataset={dataset} /> : <RowTable dataset={dataset} />}
      {isSplitting && (
        <SplitDialog
          dataset={dataset}
          close={() => setSplitting(false)}
          done={(first) => {
            setSplitting(false);
            show(first);
          }}
        />
      )}
    </div>
  );
}
