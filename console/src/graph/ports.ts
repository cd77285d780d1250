// What a node takes and gives: of its layer, of its unit, or as an import has connected it.

import type { Document, LayerCatalog, LayerNode, LayerSchema, Network } from "../api/network";
import { reaches } from "./document";

export interface Port {
  name: string;
  optional: boolean;
  variadic: boolean;
}

export interface Ports {
  inputs: Port[];
  outputs: { name: string; variadic: boolean }[];
}

/** The layers of the palette by type. */
export type Layers = ReadonlyMap<string, LayerSchema>;

export function layersByType(catalog: LayerCatalog): Layers {
  return new Map(catalog.layers.map((layer) => [layer.type, layer]));
}

export function unitOf(document: Document, node: LayerNode): Network | undefined {
  if (node.type !== "Unit") return undefined;
  return document.networks.find((network) => network.name === node.properties.network);
}

export function portsOf(
  document: Document,
  layers: Layers,
  network: Network,
  node: LayerNode,
): Ports {
  if (node.type === "Unit") return unitPorts(unitOf(document, node));
  const layer = layers.get(node.type);
  if (layer) return layer;
  const inputs = network.edges.filter((edge) => edge.target === node.id).map((edge) => edge.in);
  const outs = network.edges.filter((edge) => edge.source === node.id).map((edge) => edge.out);
  return {
    inputs: [...new Set(inputs)].map((name) => ({ name, optional: true, variadic: false })),
    outputs: Array.from({ length: Math.max(0, ...outs) + 1 }, (_, index) => ({
      name: `y${index}`,
      variadic: false,
    })),
  };
}

function unitPorts(unit: Network | undefined): Ports {
  if (!unit) return { inputs: [], outputs: [] };
  const inputs = unit.nodes.filter((node) => node.type === "Input");
  const named = unit.nodes.filter((node) => node.type === "Output");
  const read = new Set(unit.edges.map((edge) => edge.source));
  const outputs = named.length > 0 ? named : unit.nodes.filter((node) => !read.has(node.id));
  return {
    inputs: inputs.map((node) => ({ name: node.name, optional: false, variadic: false })),
    outputs: outputs.map((node) => ({ name: node.name, variadic: false })),
  };
}

export interface Connection {
  source: string;
  out: number;
  target: string;
  in: string;
}

/** Why two nodes cannot be connected, or null where they can. */
export function refusal(network: Network, ports: Ports, wanted: Connection): string | null {
  const port = ports.inputs.find((input) => input.name === wanted.in);
  if (!port) return `There is no input "${wanted.in}".`;
  if (reaches(network, wanted.target, wanted.source)) {
    return "This would make a circle: a layer cannot read what is made from its own output.";
  }
  const taken = network.edges.some((edge) => edge.target === wanted.target && edge.in === wanted.in);
  if (taken && !port.variadic) {
    return `The input "${wanted.in}" has a source already. Remove that connection first.`;
  }
  return null;
}

/** The first input that still wants a source; one that may stay empty only as the last choice. */
export function freeInput(network: Network, ports: Ports, id: string): string | null {
  const taken = new Set(
    network.edges.filter((edge) => edge.target === id).map((edge) => edge.in),
  );
  const free = ports.inputs.filter((port) => port.variadic || !taken.has(port.name));
  return (free.find((port) => !port.optional) ?? free[0])?.name ?? null;
}
