// New nodes: from the palette, from the clipboard.

import type { Document, Edge, LayerNode, LayerSchema, Network } from "../api/network";
import { freshIds, freshName, namesIn, networkOf, nodeOf, withNetwork } from "./document";
import { freeInput, portsOf, type Layers } from "./ports";

/** The height of a node with room for a connection below it. */
export const ROW = 104;

export interface Placed {
  document: Document;
  /** Ids of the new nodes. */
  added: string[];
}

const FIRST_INPUTS = ["x", "y"];

function firstName(network: Network, layer: LayerSchema): string {
  const taken = namesIn(network);
  const plain = FIRST_INPUTS.find((name) => !taken.has(name));
  if (layer.type === "Input" && plain) return plain;
  const stem = layer.type.slice(layer.type.indexOf(".") + 1).toLowerCase();
  return freshName(taken, stem);
}

export function addLayer(
  document: Document,
  name: string,
  layer: LayerSchema,
  at: { x: number; y: number },
  properties: LayerNode["properties"] = layer.initial ?? {},
): Placed {
  const [id = ""] = freshIds(document, "n", 1);
  const network = networkOf(document, name);
  const node: LayerNode = {
    id,
    type: layer.type,
    name: firstName(network, layer),
    x: Math.round(at.x),
    y: Math.round(at.y),
    properties,
  };
  return {
    document: withNetwork(document, name, (old) => ({ ...old, nodes: [...old.nodes, node] })),
    added: [id],
  };
}

/** Places a layer below a node (the selected or the lowest one) and connects the two. */
export function appendLayer(
  document: Document,
  name: string,
  layers: Layers,
  layer: LayerSchema,
  after: string | null,
  properties?: LayerNode["properties"],
): Placed {
  const network = networkOf(document, name);
  const lowest = [...network.nodes].sort((a, b) => b.y - a.y)[0];
  const source = (after === null ? undefined : nodeOf(network, after)) ?? lowest;
  const placed = addLayer(document, name, layer, below(network, source), properties);
  const [target = ""] = placed.added;
  const grown = networkOf(placed.document, name);
  const node = nodeOf(grown, target);
  if (!source || !node || source.type === "Output") return placed;
  if (portsOf(document, layers, network, source).outputs.length === 0) return placed;
  const input = freeInput(grown, portsOf(placed.document, layers, grown, node), target);
  if (input === null) return placed;
  const [id = ""] = freshIds(placed.document, "e", 1);
  const edge: Edge = { id, source: source.id, out: 0, target, in: input };
  return {
    ...placed,
    document: withNetwork(placed.document, name, (old) => ({
      ...old,
      edges: [...old.edges, edge],
    })),
  };
}

/** The free place under a node. */
function below(network: Network, source: LayerNode | undefined): { x: number; y: number } {
  return source ? free(network, { x: source.x, y: source.y + ROW }) : { x: 0, y: 0 };
}

/** This place, or one to the right of what stands there already. */
export function free(network: Network, wanted: { x: number; y: number }): { x: number; y: number } {
  const at = { x: wanted.x, y: wanted.y };
  const isTaken = () =>
    network.nodes.some((node) => Math.abs(node.x - at.x) < 200 && Math.abs(node.y - at.y) < 80);
  while (isTaken()) at.x += 240;
  return at;
}

/** Nodes and the edges between them, as they stand in the clipboard. */
export interface Fragment {
  nodes: LayerNode[];
  edges: Edge[];
  /** Networks that units among the nodes name, and those that they name in turn. */
  networks: Network[];
}

export function copyNodes(document: Document, name: string, ids: ReadonlySet<string>): Fragment {
  const network = networkOf(document, name);
  const nodes = network.nodes.filter((node) => ids.has(node.id));
  const edges = network.edges.filter((edge) => ids.has(edge.source) && ids.has(edge.target));
  const used = new Set<string>();
  const open = [...nodes];
  for (let node = open.pop(); node; node = open.pop()) {
    const unit = node.type === "Unit" ? node.properties.network : null;
    if (typeof unit !== "string" || used.has(unit)) continue;
    used.add(unit);
    open.push(...(document.networks.find((other) => other.name === unit)?.nodes ?? []));
  }
  return { nodes, edges, networks: document.networks.filter((other) => used.has(other.name)) };
}

/** Copies get ids and names of their own; a unit's network comes along where there is none. */
export function pasteNodes(
  document: Document,
  name: string,
  fragment: Fragment,
  offset: { x: number; y: number },
): Placed {
  const known = new Set(document.networks.map((network) => network.name));
  const base: Document = {
    ...document,
    networks: [
      ...document.networks,
      ...fragment.networks.filter((network) => !known.has(network.name)),
    ],
  };
  const ids = freshIds(base, "n", fragment.nodes.length);
  const edgeIds = freshIds(base, "e", fragment.edges.length);
  const taken = namesIn(networkOf(base, name));
  const renamed = new Map<string, string>();
  const nodes = fragment.nodes.map((node, index) => {
    const id = ids[index] ?? node.id;
    renamed.set(node.id, id);
    const fresh = freshName(taken, node.name);
    taken.add(fresh);
    return { ...node, id, name: fresh, x: node.x + offset.x, y: node.y + offset.y };
  });
  const edges = fragment.edges.map((edge, index) => ({
    ...edge,
    id: edgeIds[index] ?? edge.id,
    source: renamed.get(edge.source) ?? edge.source,
    target: renamed.get(edge.target) ?? edge.target,
  }));
  return {
    document: withNetwork(base, name, (old) => ({
      ...old,
      nodes: [...old.nodes, ...nodes],
      edges: [...old.edges, ...edges],
    })),
    added: ids,
  };
}

export function fragmentFrom(text: string): Fragment | null {
  if (!text.startsWith('{"nnl":')) return null;
  try {
    const { nnl } = JSON.parse(text) as { nnl: Partial<Fragment> };
    if (!Array.isArray(nnl.nodes) || !Array.isArray(nnl.edges)) return null;
    return { nodes: nnl.nodes, edges: nnl.edges, networks: nnl.networks ?? [] };
  } catch {
    return null;
  }
}

export function fragmentText(fragment: Fragment): string {
  return JSON.stringify({ nnl: fragment });
}
