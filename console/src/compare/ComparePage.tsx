// Trials side by side: what differs, the curves over each other, networks, matrices.

import { useMemo } from "react";
import type { NetworkDiff, PropertyValue } from "../api/network";
import type { Confusion, Trial } from "../api/records";
import { useResource } from "../api/resource";
import { Link, useParameter } from "../app/router";
import { useEditor } from "../editor/store";
import { ConfusionMatrix } from "../evaluation/ConfusionMatrix";
import { CurveControls, useCurveSettings } from "../training/CurveControls";
import { CurveGroups } from "../training/CurveGroups";
import { useOtherSeries } from "../training/overlay";
import { trialAddress } from "../training/start";
import { measure, setting } from "../ui/format";
import { Empty, Failure, Loading } from "../ui/parts";
import { DiffView } from "./DiffView";

interface Comparison {
  trials: Trial[];
  config: Record<string, PropertyValue[]>;
  network: NetworkDiff[];
  metrics: Record<string, { best: (number | null)[]; last: (number | null)[] }>;
  /** The data set of the matrices; null where no trial was evaluated. */
  evaluated_on: { id: string; name: string } | null;
  confusion: (Confusion | null)[];
}

export default function ComparePage() {
  const [text] = useParameter("trials");
  const project = useEditor((state) => state.project?.id ?? "");
  const ids = useMemo(() => text?.split(",").filter(Boolean) ?? [], [text]);
  const { data, error } = useResource<Comparison>(ids.length > 1 ? "/compare" : null, {
    trials: ids.join(","),
  });
  const series = useOtherSeries(ids);
  const settings = useCurveSettings();
  if (ids.length < 2) {
    return (
      <Empty title="Nothing to compare">
        Tick two or more trials in <Link to={`/p/${project}/train`}>the list</Link>.
      </Empty>
    );
  }
  if (error) return <Failure error={error} />;
  if (!data) return <Loading what="the comparison" />;
  return (
    <div className="page">
      <h1>Compare</h1>
      <Differences data={data} />
      <section>
        <div className="row">
          <h2>Curves</h2>
          <span className="spread" />
          <CurveControls settings={settings} />
        </div>
        <CurveGroups trials={series} settings={settings} />
      </section>
      {data.network.map((diff, index) => (
        <section key={index} aria-label="Network">
          <h2>
            {nameOf(data.trials[index + 1])} against {nameOf(data.trials[0])}
          </h2>
          <DiffView diff={diff} />
        </section>
      ))}
      {data.evaluated_on && data.confusion.some((confusion) => confusion !== null) && (
        <section aria-label="Confusion matrices">
          <h2>
            On <Link to={`/data/${data.evaluated_on.id}`}>{data.evaluated_on.name}</Link>
          </h2>
          <div className="matrices">
            {data.confusion.map((confusion, index) => (
              <div key={index}>
                <h3>{nameOf(data.trials[index])}</h3>
                {confusion ? (
                  <ConfusionMatrix confusion={confusion} />
                ) : (
                  <p className="muted">Not evaluated on these data.</p>
                )}
              </div>
            ))}
          </div>
        </section>
      )}
    </div>
  );
}

function nameOf(trial: Trial | undefined): string {
  return trial ? trial.name || `Trial ${trial.number}` : "";
}

function exact(number: number | null): string {
  return number === null ? "–" : number.toLocaleString("en");
}

function Differences({ data }: { data: Comparison }) {
  const rows: [string, string[]][] = [
    ...Object.entries(data.metrics).flatMap(([name, { best, last }]): [string, string[]][] => [
      [`best ${name}`, best.map(measure)],
      [`last ${name}`, last.map(measure)],
    ]),
    ["parameters", data.trials.map((trial) => exact(trial.parameters))],
    ["multiply-adds", data.trials.map((trial) => exact(trial.multiply_adds))],
    ...Object.entries(data.config).map(([name, values]): [string, string[]] => [
      name,
      values.map(setting),
    ]),
  ];
  const differing = rows.filter(([, values]) => values.some((value) => value !== values[0]));
  return (
    <>
      <section className="panel scroll">
        <table aria-label="What differs">
          <thead>
            <tr>
              <td />
              {data.trials.map((trial) => (
                <th key={trial.id} className="number">
                  <Link to={trialAddress(trial)}>{nameOf(trial)}</Link>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {differing.map(([name, values]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                {values.map((value, index) => (
                  <td key={index} className="number">
                    {value}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      {Object.keys(data.config).length === 0 && (
        <p className="muted">The configurations are the same.</p>
      )}
    </>
  );
}
