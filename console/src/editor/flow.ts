// A network as the canvas wants it. A node that did not change stays the same object, so that it
// is not drawn again.

import type { Edge as FlowEdge, NodeChange } from "@xyflow/react";
import type { Document, Network } from "../api/network";
import { NODE_HEIGHT, NODE_WIDTH } from "../graph/layout";
import { portsOf, type Layers } from "../graph/ports";
import type { LayerFlowNode } from "./LayerBox";

export function flowNodes(
  document: Document,
  network: Network,
  layers: Layers,
  selected: ReadonlySet<string>,
  old: readonly LayerFlowNode[],
): LayerFlowNode[] {
  const before = new Map(old.map((node) => [node.id, node]));
  return network.nodes.map((node) => {
    const known = before.get(node.id);
    const isSelected = selected.has(node.id);
    const ports = portsOf(document, layers, network, node);
    if (known?.data.node === node && known.selected === isSelected && known.data.ports === ports) {
      return known;
    }
    return {
      ...known,
      id: node.id,
      type: "layer",
      position: { x: node.x, y: node.y },
      initialWidth: NODE_WIDTH,
      initialHeight: NODE_HEIGHT,
      selected: isSelected,
      ariaLabel: `${node.name}, ${node.type}`,
      data: { node, network: network.name, ports },
    };
  });
}

export function flowEdges(network: Network, selected: ReadonlySet<string>): FlowEdge[] {
  return network.edges.map((edge) => ({
    id: edge.id,
    source: edge.source,
    sourceHandle: String(edge.out),
    target: edge.target,
    targetHandle: edge.in,
    selected: selected.has(edge.id),
  }));
}

/** The selection after some changes of it, or null where they change nothing. */
export function selectionAfter(
  selected: ReadonlySet<string>,
  changes: readonly NodeChange<LayerFlowNode>[],
): string[] | null {
  const next = new Set(selected);
  for (const change of changes) {
    if (change.type !== "select") continue;
    if (change.selected) next.add(change.id);
    else next.delete(change.id);
  }
  const same = next.size === selected.size && [...next].every((id) => selected.has(id));
  return same ? null : [...next];
}
