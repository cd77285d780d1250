// Units: a part of a network as a network of its own, with one node in its place.

import type { Document, Edge, LayerNode, Network } from "../api/network";
import {
  freshIds,
  freshName,
  namesIn,
  networkOf,
  nodeOf,
  withNetwork,
  withNode,
} from "./document";
import { ROW, type Placed } from "./place";
import { unitOf, type Layers } from "./ports";

export interface UnitMade extends Placed {
  network: string;
}

const port = (edge: Pick<Edge, "source" | "out">) => `${edge.source}:${edge.out}`;

/** Why these nodes cannot become a unit, or null where they can. */
export function unitRefusal(network: Network, ids: ReadonlySet<string>): string | null {
  const chosen = network.nodes.filter((node) => ids.has(node.id));
  if (chosen.length === 0) return "Select the layers that shall become a unit.";
  if (chosen.some((node) => node.type === "Input" || node.type === "Output")) {
    return "Inputs and outputs of the network stay outside of a unit.";
  }
  // A path that leaves the part and comes back would make the unit read what it makes.
  const open = network.edges
    .filter((edge) => ids.has(edge.source) && !ids.has(edge.target))
    .map((edge) => edge.target);
  const seen = new Set<string>();
  for (let id = open.pop(); id !== undefined; id = open.pop()) {
    if (ids.has(id)) return "A connection leaves these layers and comes back: select what lies between, too.";
    if (seen.has(id)) continue;
    seen.add(id);
    for (const edge of network.edges) if (edge.source === id) open.push(edge.target);
  }
  return null;
}

/** Moves nodes into a new network; what they read and give become its inputs and outputs. */
export function makeUnit(
  document: Document,
  name: string,
  ids: ReadonlySet<string>,
  layers: Layers,
): UnitMade {
  const result = layers.get("Output")?.inputs[0]?.name ?? "x";
  const network = networkOf(document, name);
  const inside = network.nodes.filter((node) => ids.has(node.id));
  const entering = network.edges.filter((edge) => !ids.has(edge.source) && ids.has(edge.target));
  const leaving = network.edges.filter((edge) => ids.has(edge.source) && !ids.has(edge.target));
  const sources = [...new Set(entering.map(port))];
  const results = [...new Set(leaving.map(port))];
  const nodeIds = freshIds(document, "n", sources.length + results.length + 1);
  const edgeIds = freshIds(document, "e", entering.length + results.length);
  const taken = new Set(inside.map((node) => node.name));
  const left = Math.min(...inside.map((node) => node.x));
  const top = Math.min(...inside.map((node) => node.y));
  const bottom = Math.max(...inside.map((node) => node.y));

  const boundary = (type: "Input" | "Output", stem: string, index: number): LayerNode => {
    const fresh = freshName(taken, index === 0 ? stem : `${stem}_${index + 1}`);
    taken.add(fresh);
    const offset = type === "Input" ? index : sources.length + index;
    return {
      id: nodeIds[offset] ?? "",
      type,
      name: fresh,
      x: left + index * 240,
      y: type === "Input" ? top - ROW : bottom + ROW,
      properties: type === "Input" ? { shape: null } : {},
    };
  };
  const inputs = sources.map((_, index) => boundary("Input", "in", index));
  const outputs = results.map((_, index) => boundary("Output", "out", index));

  const innerEdges: Edge[] = [
    ...network.edges.filter((edge) => ids.has(edge.source) && ids.has(edge.target)),
    ...entering.map((edge, index) => ({
      ...edge,
      id: edgeIds[index] ?? "",
      source: inputs[sources.indexOf(port(edge))]?.id ?? "",
      out: 0,
    })),
    ...results.map((from, index) => {
      const [source = "", out = "0"] = from.split(":");
      const target = outputs[index]?.id ?? "";
      return { id: edgeIds[entering.length + index] ?? "", source, out: Number(out), target, in: result };
    }),
  ];
  const unitName = freshName(new Set(document.networks.map((other) => other.name)), "unit");
  const unit: LayerNode = {
    id: nodeIds.at(-1) ?? "",
    type: "Unit",
    name: freshName(namesIn(network), unitName),
    x: left,
    y: Math.round((top + bottom) / 2),
    properties: { network: unitName },
  };
  const outer: Network = {
    ...network,
    nodes: [...network.nodes.filter((node) => !ids.has(node.id)), unit],
    edges: [
      ...network.edges.filter((edge) => !ids.has(edge.source) && !ids.has(edge.target)),
      ...sources.map((source, index) => {
        const example = entering.find((edge) => port(edge) === source);
        return {
          id: example?.id ?? "",
          source: example?.source ?? "",
          out: example?.out ?? 0,
          target: unit.id,
          in: inputs[index]?.name ?? "",
        };
      }),
      ...leaving.map((edge) => ({ ...edge, source: unit.id, out: results.indexOf(port(edge)) })),
    ],
  };
  const inner: Network = {
    name: unitName,
    nodes: [...inputs, ...inside, ...outputs],
    edges: innerEdges,
  };
  const changed = withNetwork(document, name, () => outer);
  return {
    document: { ...changed, networks: [...changed.networks, inner] },
    added: [unit.id],
    network: unitName,
  };
}

/** Puts a unit's layers in its place. Its network goes when no other unit is of it. */
export function unpackUnit(document: Document, name: string, id: string): Placed {
  const network = networkOf(document, name);
  const unit = nodeOf(network, id);
  const inner = unit && unitOf(document, unit);
  if (!unit || !inner) return { document, added: [] };
  const inputs = inner.nodes.filter((node) => node.type === "Input");
  const outputs = inner.nodes.filter((node) => node.type === "Output");
  const body = inner.nodes.filter((node) => node.type !== "Input" && node.type !== "Output");
  const ids = freshIds(document, "n", body.length);
  const renamed = new Map(body.map((node, index) => [node.id, ids[index] ?? node.id]));
  const taken = namesIn(network);
  taken.delete(unit.name);
  const left = Math.min(...body.map((node) => node.x));
  const top = Math.min(...body.map((node) => node.y));
  const nodes = body.map((node) => {
    const fresh = freshName(taken, node.name);
    taken.add(fresh);
    const at = { x: unit.x + node.x - left, y: unit.y + node.y - top };
    return { ...node, ...at, id: renamed.get(node.id) ?? node.id, name: fresh };
  });

  // Where an end of an inner edge lies outside: an input is what feeds the unit there.
  const outside = (edge: Edge): Edge[] => {
    const input = inputs.find((node) => node.id === edge.source);
    if (!input) return [{ ...edge, source: renamed.get(edge.source) ?? edge.source }];
    return network.edges
      .filter((feed) => feed.target === id && feed.in === input.name)
      .map((feed) => ({ ...edge, source: feed.source, out: feed.out }));
  };
  const inward = inner.edges
    .filter((edge) => renamed.has(edge.target))
    .flatMap(outside)
    .map((edge) => ({ ...edge, target: renamed.get(edge.target) ?? edge.target }));
  const read = new Set(inner.edges.map((edge) => edge.source));
  const ends = outputs.length > 0 ? outputs : inner.nodes.filter((node) => !read.has(node.id));
  const outward = network.edges
    .filter((edge) => edge.source === id)
    .flatMap((edge) => {
      const end = ends[edge.out];
      if (!end) return [];
      if (end.type !== "Output") return [{ ...edge, source: renamed.get(end.id) ?? end.id, out: 0 }];
      return inner.edges
        .filter((feed) => feed.target === end.id)
        .flatMap(outside)
        .map((feed) => ({ ...edge, source: feed.source, out: feed.out }));
    });
  const edgeIds = freshIds(document, "e", inward.length + outward.length);
  const edges = [...inward, ...outward].map((edge, index) => ({
    ...edge,
    id: edgeIds[index] ?? edge.id,
  }));
  const changed = withNetwork(document, name, (old) => ({
    ...old,
    nodes: [...old.nodes.filter((node) => node.id !== id), ...nodes],
    edges: [...old.edges.filter((edge) => edge.source !== id && edge.target !== id), ...edges],
  }));
  const stillUsed = changed.networks.some((other) =>
    other.nodes.some((node) => node.type === "Unit" && node.properties.network === inner.name),
  );
  return {
    document: stillUsed
      ? changed
      : { ...changed, networks: changed.networks.filter((other) => other.name !== inner.name) },
    added: [...renamed.values()],
  };
}

export function renameNetwork(document: Document, from: string, to: string): Document {
  return {
    ...document,
    networks: document.networks.map((network) => ({
      ...network,
      name: network.name === from ? to : network.name,
      nodes: network.nodes.map((node) =>
        node.type === "Unit" && node.properties.network === from
          ? { ...node, properties: { ...node.properties, network: to } }
          : node,
      ),
    })),
  };
}

/** An input of a unit is also the name of the edges that lead into the unit. */
export function renameNode(document: Document, name: string, id: string, to: string): Document {
  const node = nodeOf(networkOf(document, name), id);
  if (!node || node.name === to) return document;
  const renamed = withNetwork(document, name, (network) =>
    withNode(network, id, (old) => ({ ...old, name: to })),
  );
  if (node.type !== "Input") return renamed;
  return {
    ...renamed,
    networks: renamed.networks.map((network) => {
      const users = new Set(
        network.nodes
          .filter((other) => other.type === "Unit" && other.properties.network === name)
          .map((other) => other.id),
      );
      if (users.size === 0) return network;
      return {
        ...network,
        edges: network.edges.map((edge) =>
          users.has(edge.target) && edge.in === node.name ? { ...edge, in: to } : edge,
        ),
      };
    }),
  };
}
