// A layer on the canvas: its name, what it is set to, what comes out, what it costs, what is wrong.

import { Handle, Position, useUpdateNodeInternals, type Node, type NodeProps } from "@xyflow/react";
import { memo, useEffect, useRef } from "react";
import type { LayerNode, LayerSchema, NodeAnalysis } from "../api/network";
import type { Ports } from "../graph/ports";
import { count, literal, shape } from "../ui/format";
import { useAnalysis, useNodeAnalysis } from "./analysis";
import { fix } from "./commands";
import { useHue } from "./hue";
import { STATISTICS, statisticText, useStatistic } from "./statistic";
import { useEditor } from "./store";

export type LayerFlowNode = Node<{ node: LayerNode; network: string; ports: Ports }, "layer">;

const KEY_PROPERTIES = 3;

/** The properties that were set by hand, as Python would write them. */
function keyText({ properties }: LayerNode, layer: LayerSchema | undefined): string {
  const names = layer?.properties.map(({ name }) => name) ?? Object.keys(properties);
  return names
    .filter((name) => (properties[name] ?? null) !== null)
    .slice(0, KEY_PROPERTIES)
    .map((name) => `${name}=${literal(properties[name])}`)
    .join(" ");
}

function shapeText(analysis: NodeAnalysis | undefined): string {
  return analysis?.outputs.map((output) => shape(output.shape, output.batch)).join(", ") ?? "";
}

export const LayerBox = memo(function LayerBox({ id, data }: NodeProps<LayerFlowNode>) {
  const { node, network, ports } = data;
  const analysis = useNodeAnalysis(network, id);
  const layer = useEditor((state) => state.layers.get(node.type));
  const hue = useHue(node.type);
  const problem = analysis?.errors.find((error) => error.severity === "error");
  const wrong = problem !== undefined && problem.code !== "upstream";
  const outputs = outputNames(ports, analysis);
  const title = layer?.title ?? node.type;
  // A layer that is named after its kind needs the place for its name.
  const isTold = node.name.replace(/_\d+$/, "") === title.toLowerCase().replaceAll(" ", "_");
  const updateInternals = useUpdateNodeInternals();
  const handles = outputs.length + ports.inputs.length;
  const measured = useRef(handles);
  useEffect(() => {
    // The first ones are measured with the node; asking again for each of many takes seconds.
    if (measured.current === handles) return;
    measured.current = handles;
    updateInternals(id);
  }, [updateInternals, id, handles]);

  return (
    <div
      className={`layer${wrong ? " wrong" : ""}${problem?.code === "upstream" ? " upstream" : ""}`}
      data-hue={hue}
    >
      {ports.inputs.map((port, index) => (
        <Handle
          key={port.name}
          id={port.name}
          type="target"
          position={Position.Top}
          title={port.name}
          aria-label={`${node.name}: input ${port.name}`}
          style={{ left: `${((index + 1) / (ports.inputs.length + 1)) * 100}%` }}
        />
      ))}
      <div className="top">
        <span className="name">{node.name}</span>
        {isTold || <span className="title">{title}</span>}
      </div>
      <div className="key">{keyText(node, layer)}</div>
      <Result analysis={analysis} />
      {wrong && <div className="error">{problem.message}</div>}
      {wrong && problem.fix && (
        <button
          className="fix nodrag"
          title={problem.fix.label}
          onClick={(event) => {
            // A click on the layer would select it beside what the repair has added.
            event.stopPropagation();
            fix(problem);
          }}
        >
          {problem.fix.label}
        </button>
      )}
      {outputs.map((name, index) => (
        <Handle
          key={index}
          id={String(index)}
          type="source"
          position={Position.Bottom}
          title={name}
          aria-label={`${node.name}: output ${name}`}
          style={{ left: `${((index + 1) / (outputs.length + 1)) * 100}%` }}
        />
      ))}
    </div>
  );
});

function outputNames(ports: Ports, analysis: NodeAnalysis | undefined): string[] {
  const found = analysis?.outputs.map((output) => output.name) ?? [];
  if (ports.outputs.some((output) => output.variadic) && found.length > 0) return found;
  return ports.outputs.map((output) => output.name);
}

function Result({ analysis }: { analysis: NodeAnalysis | undefined }) {
  const { statistic } = useStatistic();
  const total = useAnalysis((state) => state.analysis?.totals[statistic] ?? 0);
  const value = analysis?.[statistic];
  const share = value && total > 0 ? value / total : 0;
  const parameters = statistic === "parameters" ? 0 : analysis?.parameters;
  return (
    <div className="result">
      <span>{shapeText(analysis)}</span>
      {parameters ? (
        <span className="muted" title={STATISTICS.parameters}>
          W {count(parameters)}
        </span>
      ) : null}
      {value ? (
        <span className="muted" title={STATISTICS[statistic]}>
          {statisticText(statistic, value)}
        </span>
      ) : null}
      {share > 0 && <span className="cost" style={{ width: `${Math.max(share * 100, 1)}%` }} />}
    </div>
  );
}
