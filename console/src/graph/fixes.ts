// The edits that the server proposes with an error.

import type { Document, Edit } from "../api/network";
import { removeEdges, removeNodes, setProperty, withNetwork, withNode } from "./document";
import { free } from "./place";

export function applyEdits(document: Document, edits: readonly Edit[]): Document {
  return edits.reduce(applyEdit, document);
}

function applyEdit(document: Document, edit: Edit): Document {
  return withNetwork(document, edit.network, (network) => {
    switch (edit.op) {
      case "set":
        return setProperty(network, edit.node, edit.property, edit.value);
      case "delete_node":
        return removeNodes(network, new Set([edit.node]));
      case "delete_edge":
        return removeEdges(network, new Set([edit.edge]));
      case "rename":
        return withNode(network, edit.node, (node) => ({ ...node, name: edit.value }));
      case "add_node":
        return { ...network, nodes: [...network.nodes, { ...edit.value, ...free(network, edit.value) }] };
      case "add_edge":
        return { ...network, edges: [...network.edges, edit.value] };
    }
  });
}
