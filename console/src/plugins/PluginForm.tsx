// A form from the arguments of a plug-in's script, and what its run gave.

import { useCallback, useEffect, useState } from "react";
import { address, get, post } from "../api/http";
import type { PropertyKind, PropertyValue } from "../api/network";
import type { Dataset, Plugin, PluginField, PluginRun, Trial } from "../api/records";
import { useResource } from "../api/resource";
import { attempt, failed } from "../app/notices";
import { bytes } from "../ui/format";
import { ValueField } from "../editor/ValueField";
import { Failure, Loading } from "../ui/parts";

const KINDS: Record<string, PropertyKind> = {
  int: "int",
  row: "int",
  float: "float",
  bool: "bool",
};
/** What the server fills in by itself when there is a trial and a row. */
const GIVEN = new Set(["row", "csv", "model"]);
const POLL_MS = 700;

interface PluginFormProps {
  plugin: Plugin;
  trial: string | null;
  row: number | null;
}

export function PluginForm({ plugin, trial, row }: PluginFormProps) {
  const { data, error } = useResource<{ fields: PluginField[] }>(`/plugins/${plugin.id}/schema`);
  const [values, setValues] = useState<Record<string, PropertyValue>>({});
  // By row, so that what is shown is of the row that the title names.
  const [runs, setRuns] = useState<ReadonlyMap<number | null, PluginRun>>(new Map());
  const of = plugin.scope === "row" ? row : null;
  const run = runs.get(of) ?? null;
  const setRun = useCallback((found: PluginRun) => setRuns((old) => new Map(old).set(of, found)), [of]);
  useFollowed(run, setRun);
  if (error) return <Failure error={error} />;
  if (!data) return <Loading what="the form" />;
  const asked = data.fields.filter((field) => trial === null || !GIVEN.has(field.kind));
  const lacks = plugin.scope === "row" && trial !== null && row === null ? "Select a row of the results first." : null;
  const isRunning = run?.status === "running";
  const begin = async () =>
    setRun(await post<PluginRun>(`/plugins/${plugin.id}/run`, { args: values, trial, row }));

  return (
    <form
      className="fields"
      onSubmit={(event) => {
        event.preventDefault();
        attempt(begin);
      }}
    >
      {asked.map((field) => (
        <div key={field.name} className="property">
          <label htmlFor={`arg-${field.name}`} title={field.doc}>
            {field.name}
          </label>
          <span className="value">
            <ArgumentField
              field={field}
              value={values[field.name]}
              change={(value) => setValues({ ...values, [field.name]: value })}
            />
          </span>
        </div>
      ))}
      <button className="primary changes" disabled={lacks !== null || isRunning} title={lacks ?? undefined}>
        {isRunning ? "Running …" : "Run"}
      </button>
      {isRunning && (
        <button
          type="button"
          onClick={() => attempt(async () => setRun(await post<PluginRun>(`/runs/${run.id}/cancel`)))}
        >
          Stop
        </button>
      )}
      {lacks && <p className="muted">{lacks}</p>}
      {run && <RunResult run={run} />}
    </form>
  );
}

interface ArgumentFieldProps {
  field: PluginField;
  value: PropertyValue | undefined;
  change: (value: PropertyValue) => void;
}

/** Models and data sets are chosen among those that the console has. */
function ArgumentField({ field, value, change }: ArgumentFieldProps) {
  const id = `arg-${field.name}`;
  if (field.kind === "model") return <TrialField id={id} value={value} change={change} />;
  if (field.kind === "csv" && !field.name.startsWith("out")) {
    return <DatasetField id={id} value={value} change={change} />;
  }
  return (
    <ValueField
      id={id}
      schema={{ kind: KINDS[field.kind] ?? "str", choices: field.choices }}
      value={value ?? (field.kind === "bool" ? field.default : undefined)}
      automatic={field.default === null ? "" : String(field.default)}
      change={change}
    />
  );
}

interface ChoiceProps {
  id: string;
  value: PropertyValue | undefined;
  change: (value: PropertyValue) => void;
}

function TrialField(props: ChoiceProps) {
  const { data } = useResource<{ trials: Trial[] }>("/trials", { status: "finished" });
  const trained = (data?.trials ?? []).filter((trial) => trial.kind === "train");
  return <Choice {...props} items={trained} title={(trial) => trial.name || `Trial ${trial.number}`} />;
}

function DatasetField(props: ChoiceProps) {
  const { data } = useResource<{ datasets: Dataset[] }>("/datasets");
  return <Choice {...props} items={data?.datasets ?? []} title={(dataset) => dataset.name} />;
}

function Choice<T extends { id: string }>({
  id,
  value,
  change,
  items,
  title,
}: ChoiceProps & { items: readonly T[]; title: (item: T) => string }) {
  return (
    <select
      id={id}
      value={typeof value === "string" ? value : ""}
      onChange={(event) => change(event.target.value)}
    >
      <option value="">choose</option>
      {items.map((item) => (
        <option key={item.id} value={item.id}>
          {title(item)}
        </option>
      ))}
    </select>
  );
}

function useFollowed(run: PluginRun | null, set: (run: PluginRun) => void): void {
  useEffect(() => {
    if (run?.status !== "running") return;
    const timer = window.setTimeout(() => {
      get<PluginRun>(`/runs/${run.id}`).then(set, failed);
    }, POLL_MS);
    return () => window.clearTimeout(timer);
  }, [run, set]);
}

function RunResult({ run }: { run: PluginRun }) {
  const why = typeof run.error === "string" ? run.error : run.error?.message;
  return (
    <div className="fields" aria-live="polite">
      {run.status === "failed" && (
        <Failure error={{ message: why ?? "The plug-in failed.", hint: null, where: null }} />
      )}
      {run.artifacts.map((file) => {
        // Another address when there is more of it: a picture is shown while it is written, too.
        const url = address(`/runs/${run.id}/artifacts/${file.id}`, { bytes: file.bytes });
        return file.kind === "image" ? (
          <img key={url} className="artifact" src={url} alt={file.name} />
        ) : (
          <a key={file.id} href={url} download>
            {file.name} ({bytes(file.bytes)})
          </a>
        );
      })}
      {run.log && (
        <details>
          <summary className="muted">What it printed</summary>
          <pre className="log">{run.log}</pre>
        </details>
      )}
    </div>
  );
}
