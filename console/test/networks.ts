// Documents for tests: nodes by name with what they read.

import type { Document, Edge, LayerNode, LayerSchema, TrainingConfig } from "../src/api/network";
import type { Layers } from "../src/graph/ports";

function layer(type: string, inputs: string[], outputs = ["y"]): LayerSchema {
  return {
    type,
    title: type,
    category: "",
    doc: "",
    inputs: inputs.map((name) => ({ name, optional: false, variadic: name === "xs" })),
    outputs: outputs.map((name) => ({ name, variadic: false })),
    properties: [],
    parameters: [],
    loss: false,
  };
}

export const LAYERS: Layers = new Map(
  [
    layer("Input", []),
    layer("Output", ["x"], []),
    layer("F.relu", ["x"]),
    layer("F.add2", ["x0", "x1"]),
    layer("F.concatenate", ["xs"]),
    layer("Unit", []),
  ].map((one) => [one.type, one]),
);

/** A main network of lines such as ["sum", "F.add2", "a", "b"]. */
export function documentOf(lines: [string, string, ...string[]][]): Document {
  const nodes: LayerNode[] = lines.map(([name, type], index) => ({
    id: `n${index + 1}`,
    type,
    name,
    x: 0,
    y: index * 100,
    properties: {},
  }));
  const ids = new Map(nodes.map((node) => [node.name, node.id]));
  const edges: Edge[] = lines.flatMap(([name, type, ...sources]) =>
    sources.map((source, index) => ({
      id: "",
      source: ids.get(source) ?? "",
      out: 0,
      target: ids.get(name) ?? "",
      in: LAYERS.get(type)?.inputs[type === "F.concatenate" ? 0 : index]?.name ?? "",
    })),
  );
  return {
    format: 1,
    networks: [
      { name: "main", nodes, edges: edges.map((edge, index) => ({ ...edge, id: `e${index + 1}` })) },
    ],
    config: {} as TrainingConfig,
  };
}

/** What reads what, without ids: "a:0 > sum.x0". */
export function wiring(document: Document, index = 0): string[] {
  const network = document.networks[index];
  const names = new Map(network?.nodes.map((node) => [node.id, node.name]));
  return (network?.edges ?? [])
    .map((edge) => `${names.get(edge.source)}:${edge.out} > ${names.get(edge.target)}.${edge.in}`)
    .sort();
}

export function idsOf(document: Document, ...names: string[]): Set<string> {
  const nodes = document.networks[0]?.nodes ?? [];
  return new Set(nodes.filter((node) => names.includes(node.name)).map((node) => node.id));
}
