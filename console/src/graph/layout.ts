// Where nodes stand when nobody has put them anywhere: in layers from top to bottom.

import dagre from "@dagrejs/dagre";
import type { Document, Network } from "../api/network";
import { moveNodes } from "./document";

export const NODE_WIDTH = 208;
export const NODE_HEIGHT = 72;

export function arrange(network: Network): Network {
  const graph = new dagre.graphlib.Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 32, ranksep: 36 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of network.nodes) {
    graph.setNode(node.id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  }
  for (const edge of network.edges) graph.setEdge(edge.source, edge.target);
  dagre.layout(graph);
  const positions = new Map(
    network.nodes.map((node) => {
      const { x, y } = graph.node(node.id) as { x: number; y: number };
      return [node.id, { x: x - NODE_WIDTH / 2, y: y - NODE_HEIGHT / 2 }];
    }),
  );
  return moveNodes(network, positions);
}

/** Networks that came without places (from a file of another tool) get them. */
export function arrangeWhereNeeded(document: Document): Document {
  return {
    ...document,
    networks: document.networks.map((network) => {
      const places = new Set(network.nodes.map((node) => `${node.x},${node.y}`));
      return places.size < network.nodes.length / 2 ? arrange(network) : network;
    }),
  };
}
