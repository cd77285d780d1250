// All trials of a project: their best error against what they cost.

import { lazy } from "react";
import type { Trial } from "../api/records";
import { useResource } from "../api/resource";
import { navigate } from "../app/router";
import { Empty, Failure } from "../ui/parts";
import { idOf, paretoFront, scatterOption, type ScatterPoint } from "../ui/scatter";

const Chart = lazy(() => import("../ui/Chart"));

export function TradeOff({ project, current }: { project: string; current: string | null }) {
  const { data, error } = useResource<{ trials: Trial[] }>("/trials", { project, limit: 1000 });
  if (error) return <Failure error={error} />;
  const plain = (data?.trials ?? []).flatMap((trial) =>
    trial.best && trial.multiply_adds !== null
      ? [{ trial, x: trial.multiply_adds, y: trial.best.value }]
      : [],
  );
  if (data && plain.length === 0) {
    return <Empty title="Nothing to weigh yet">A trial appears here after its first validation.</Empty>;
  }
  const front = new Set(paretoFront(plain));
  const points = plain.map(
    (point): ScatterPoint => ({
      id: point.trial.id,
      title: point.trial.name || `Trial ${point.trial.number}`,
      x: point.x,
      y: point.y,
      onFront: front.has(point),
      isCurrent: point.trial.id === current,
    }),
  );
  const best = plain[0]?.trial.best?.name ?? "error";
  return (
    <Chart
      label="Trade-off of error and multiply-adds"
      of={[data, current]}
      option={(colors) => scatterOption(points, { x: "Multiply-adds", y: best }, colors)}
      click={(clicked) => {
        const id = idOf(clicked);
        if (id) navigate(`/p/${project}/train/${id}?view=tradeoff`);
      }}
    />
  );
}
