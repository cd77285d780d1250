// How the network is trained: part of the document, so undo and versions cover it.

import type { ReactNode } from "react";
import type { Analysis, PropertyKind, PropertySchema, PropertyValue, TrainingConfig } from "../api/network";
import type { Dataset, SystemInfo } from "../api/records";
import { useResource } from "../api/resource";
import { Link } from "../app/router";
import { useAnalysis } from "./analysis";
import { ValueField } from "./ValueField";
import { useDocument, useEditor } from "./store";

interface Options {
  type: string;
  doc?: string;
  properties: PropertySchema[];
}

interface Solvers {
  solvers: Options[];
  schedules: Options[];
}

function edit(key: string, change: (config: TrainingConfig) => TrainingConfig): void {
  useEditor
    .getState()
    .edit((document) => ({ ...document, config: change(document.config) }), {
      merge: `config ${key}`,
    });
}

export default function ConfigPage() {
  const { config } = useDocument();
  const datasets = useResource<{ datasets: Dataset[] }>("/datasets").data?.datasets ?? [];
  const contexts = useResource<SystemInfo>("/system").data?.contexts ?? [config.context];
  const solvers = useResource<Solvers>("/schema/solvers").data;
  const { optimizer } = config;

  const setOptimizer = (change: Partial<TrainingConfig["optimizer"]>) =>
    edit("optimizer", (old) => ({ ...old, optimizer: { ...old.optimizer, ...change } }));
  const setDataset = (change: Partial<TrainingConfig["dataset"]>) =>
    edit("dataset", (old) => ({ ...old, dataset: { ...old.dataset, ...change } }));

  return (
    <div className="page config">
      <div className="page-title">
        <h1>Config</h1>
      </div>
      <Group title="Data">
        {(["train", "valid"] as const).map((part) => (
          <Line
            key={part}
            label={part === "train" ? "Training set" : "Validation set"}
            where={`dataset.${part}`}
          >
            <select
              value={config.dataset[part] ?? ""}
              onChange={(event) => setDataset({ [part]: event.target.value || null })}
            >
              <option value="">none</option>
              {datasets.map((dataset) => (
                <option key={dataset.id} value={dataset.id}>
                  {dataset.name} ({dataset.rows.toLocaleString("en")} rows)
                </option>
              ))}
            </select>
          </Line>
        ))}
        <Line label="Shuffle">
          <input
            type="checkbox"
            checked={config.dataset.shuffle}
            onChange={(event) => setDataset({ shuffle: event.target.checked })}
          />
        </Line>
        <p className="muted">
          <Link to="/data">Bring data sets</Link>, look at them, split them.
        </p>
      </Group>
      <Group title="Training">
        <Value label="Batch size" name="batch_size" kind="int" config={config} />
        <Value label="Epochs" name="max_epoch" kind="int" config={config} />
        <Value label="Seed" name="seed" kind="int" config={config} />
        <Line label="Runs on" where="context">
          <select
            value={config.context}
            onChange={(event) => edit("context", (old) => ({ ...old, context: event.target.value }))}
          >
            {[...new Set([config.context, ...contexts])].map((context) => (
              <option key={context}>{context}</option>
            ))}
          </select>
        </Line>
        <Line label="Keep the best weights">
          <input
            type="checkbox"
            checked={config.save_best}
            onChange={(event) =>
              edit("save_best", (old) => ({ ...old, save_best: event.target.checked }))
            }
          />
        </Line>
        <Line label="Stop after epochs without gain" where="early_stop.epochs">
          <ValueField
            id="early-stop"
            schema={{ kind: "int", choices: null }}
            value={config.early_stop.epochs || null}
            automatic="never"
            change={(value) =>
              edit("early_stop", (old) => ({ ...old, early_stop: { epochs: Number(value ?? 0) } }))
            }
          />
        </Line>
      </Group>
      <Group title="Optimizer">
        <Chosen
          label="Kind"
          where="optimizer"
          inner="optimizer.properties"
          options={solvers?.solvers}
          type={optimizer.type}
          properties={optimizer.properties}
          choose={(type) => setOptimizer({ type, properties: {} })}
          change={(name, value) =>
            setOptimizer({ properties: changed(optimizer.properties, name, value) })
          }
        />
        <Line label="Weight decay" where="optimizer.weight_decay">
          <ValueField
            id="weight-decay"
            schema={{ kind: "float", choices: null }}
            value={optimizer.weight_decay}
            automatic="0"
            change={(value) => setOptimizer({ weight_decay: Number(value ?? 0) })}
          />
        </Line>
      </Group>
      <Group title="Learning rate over time">
        <Chosen
          label="Schedule"
          where="optimizer.schedule"
          inner="optimizer.schedule"
          options={solvers?.schedules}
          type={optimizer.schedule.type}
          properties={optimizer.schedule}
          choose={(type) =>
            setOptimizer({ schedule: { type: type as TrainingConfig["optimizer"]["schedule"]["type"] } })
          }
          change={(name, value) =>
            setOptimizer({
              schedule: {
                ...changed(optimizer.schedule, name, value),
                type: optimizer.schedule.type,
              },
            })
          }
        />
      </Group>
    </div>
  );
}

function changed(
  properties: Record<string, PropertyValue>,
  name: string,
  value: PropertyValue,
): Record<string, PropertyValue> {
  const { [name]: _, ...rest } = properties;
  return value === null ? rest : { ...rest, [name]: value };
}

function Group({ title, children }: { title: string; children: ReactNode }) {
  return (
    <section className="panel group" aria-label={title}>
      <h2>{title}</h2>
      {children}
    </section>
  );
}

interface LineProps {
  label: string;
  /** The place in the configuration that problems name. */
  where?: string;
  /** Other places whose problems stand here. */
  also?: string[];
  children: ReactNode;
}

function Line({ label, where, also = [], children }: LineProps) {
  const all = useAnalysis((state) => state.analysis?.config ?? NONE);
  const places = [where, ...also].map((place) => `config.${place}`);
  const found = where === undefined ? NONE : all.filter((one) => places.includes(one.where));
  return (
    <div className="config-entry">
      <label className="config-line">
        <span className="muted">{label}</span>
        <span className="value">{children}</span>
      </label>
      {found.map((one) => (
        <p key={one.message} className={one.severity === "error" ? "bad" : "warn"} aria-live="polite">
          {one.message}
        </p>
      ))}
    </div>
  );
}

const NONE: Analysis["config"] = [];

interface ValueProps {
  label: string;
  name: "batch_size" | "max_epoch" | "seed";
  kind: PropertyKind;
  config: TrainingConfig;
}

function Value({ label, name, kind, config }: ValueProps) {
  return (
    <Line label={label} where={name}>
      <ValueField
        id={name}
        schema={{ kind, choices: null }}
        value={config[name]}
        automatic=""
        change={(value) => {
          if (typeof value === "number") edit(name, (old) => ({ ...old, [name]: value }));
        }}
      />
    </Line>
  );
}

interface ChosenProps {
  label: string;
  /** The places of the choice and of its options in the configuration. */
  where: string;
  inner: string;
  options: Options[] | undefined;
  type: string;
  properties: Record<string, PropertyValue>;
  choose: (type: string) => void;
  change: (name: string, value: PropertyValue) => void;
}

/** A choice of kinds, each with options of its own. */
function Chosen({ label, where, inner, options = [], type, properties, choose, change }: ChosenProps) {
  const types = [...new Set([type, ...options.map((option) => option.type)])];
  const own = options.find((option) => option.type === type)?.properties ?? [];
  // What an import has brought and the form does not offer.
  const foreign = Object.keys(properties)
    .filter((name) => !own.some((schema) => schema.name === name))
    .map((name) => `${inner}.${name}`);
  return (
    <>
      <Line label={label} where={where} also={[`${where}.type`, inner, ...foreign]}>
        <select value={type} onChange={(event) => choose(event.target.value)}>
          {types.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </Line>
      {own.map((schema) => (
        <Line key={schema.name} label={schema.name} where={`${inner}.${schema.name}`}>
          <ValueField
            id={`${label}-${schema.name}`}
            schema={schema}
            value={properties[schema.name]}
            automatic={schema.default === null ? "" : String(schema.default)}
            change={(value) => change(schema.name, value)}
          />
        </Line>
      ))}
    </>
  );
}
