// Finding and changing parts of a document. Documents are never changed in place: what an edit
// leaves alone is the same object before and after, which undo and drawing rely on.

import type { Document, Edge, LayerNode, Network, PropertyValue } from "../api/network";

export function networkOf(document: Document, name: string): Network {
  const found = document.networks.find((network) => network.name === name);
  if (!found) throw new Error(`the document has no network "${name}"`);
  return found;
}

export function mainOf(document: Document): Network {
  const [main] = document.networks;
  if (!main) throw new Error("the document has no network");
  return main;
}

export function nodeOf(network: Network, id: string): LayerNode | undefined {
  return network.nodes.find((node) => node.id === id);
}

export function withNetwork(
  document: Document,
  name: string,
  change: (network: Network) => Network,
): Document {
  return {
    ...document,
    networks: document.networks.map((network) =>
      network.name === name ? change(network) : network,
    ),
  };
}

export function withNode(
  network: Network,
  id: string,
  change: (node: LayerNode) => LayerNode,
): Network {
  return { ...network, nodes: network.nodes.map((node) => (node.id === id ? change(node) : node)) };
}

/** Ids that no node and no edge of the document has: n7, n8, ... for the prefix n. */
export function freshIds(document: Document, prefix: "n" | "e", wanted: number): string[] {
  let last = 0;
  for (const network of document.networks) {
    for (const { id } of prefix === "n" ? network.nodes : network.edges) {
      const number = id.startsWith(prefix) ? Number(id.slice(1)) : NaN;
      if (number > last) last = number;
    }
  }
  return Array.from({ length: wanted }, (_, index) => `${prefix}${last + 1 + index}`);
}

/** The name itself, or with the first number that makes it new: conv, conv_2, conv_3. */
export function freshName(taken: ReadonlySet<string>, name: string): string {
  if (!taken.has(name)) return name;
  const stem = name.replace(/_\d+$/, "");
  for (let number = 2; ; number++) {
    const candidate = `${stem}_${number}`;
    if (!taken.has(candidate)) return candidate;
  }
}

export function namesIn(network: Network): Set<string> {
  return new Set(network.nodes.map((node) => node.name));
}

export function removeNodes(network: Network, ids: ReadonlySet<string>): Network {
  return {
    ...network,
    nodes: network.nodes.filter((node) => !ids.has(node.id)),
    edges: network.edges.filter((edge) => !ids.has(edge.source) && !ids.has(edge.target)),
  };
}

export function removeEdges(network: Network, ids: ReadonlySet<string>): Network {
  return { ...network, edges: network.edges.filter((edge) => !ids.has(edge.id)) };
}

export function moveNodes(
  network: Network,
  positions: ReadonlyMap<string, { x: number; y: number }>,
): Network {
  let moved = false;
  const nodes = network.nodes.map((node) => {
    const to = positions.get(node.id);
    if (!to || (Math.round(to.x) === node.x && Math.round(to.y) === node.y)) return node;
    moved = true;
    return { ...node, x: Math.round(to.x), y: Math.round(to.y) };
  });
  return moved ? { ...network, nodes } : network;
}

export function setProperty(
  network: Network,
  id: string,
  property: string,
  value: PropertyValue | undefined,
): Network {
  return withNode(network, id, (node) => {
    const { [property]: _, ...rest } = node.properties;
    return { ...node, properties: value === undefined ? rest : { ...rest, [property]: value } };
  });
}

/** Does a path lead from one node to another? */
export function reaches(network: Network, from: string, to: string): boolean {
  const targets = new Map<string, string[]>();
  for (const edge of network.edges) {
    const list = targets.get(edge.source);
    if (list) list.push(edge.target);
    else targets.set(edge.source, [edge.target]);
  }
  const seen = new Set<string>();
  const open = [from];
  for (let node = open.pop(); node !== undefined; node = open.pop()) {
    if (node === to) return true;
    if (seen.has(node)) continue;
    seen.add(node);
    open.push(...(targets.get(node) ?? []));
  }
  return false;
}

export function edgesInto(network: Network, id: string): Edge[] {
  return network.edges.filter((edge) => edge.target === id);
}
