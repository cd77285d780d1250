// What each input of a layer reads; choosing here connects without a pointer.

import type { LayerNode } from "../api/network";
import { networkOf, removeEdges, withNetwork } from "../graph/document";
import { portsOf } from "../graph/ports";
import { connect } from "./commands";
import { useDocument, useEditor } from "./store";

/** The nodes that read a node, directly or not, and the node itself. */
function readers(edges: readonly { source: string; target: string }[], id: string): Set<string> {
  const targets = Map.groupBy(edges, (edge) => edge.source);
  const seen = new Set<string>();
  const open = [id];
  for (let node = open.pop(); node !== undefined; node = open.pop()) {
    if (seen.has(node)) continue;
    seen.add(node);
    open.push(...(targets.get(node) ?? []).map((edge) => edge.target));
  }
  return seen;
}

export function Sources({ node, network: name }: { node: LayerNode; network: string }) {
  const document = useDocument();
  const layers = useEditor((state) => state.layers);
  const network = networkOf(document, name);
  const { inputs } = portsOf(document, layers, network, node);
  if (inputs.length === 0) return null;
  const refused = readers(network.edges, node.id);
  const named = new Map(network.nodes.map((other) => [other.id, other.name]));
  const choices = network.nodes
    .filter((other) => !refused.has(other.id) && other.type !== "Output")
    .flatMap((other) =>
      portsOf(document, layers, network, other).outputs.map((output, out, all) => ({
        value: `${other.id} ${out}`,
        text: all.length > 1 ? `${other.name} · ${output.name}` : other.name,
      })),
    );
  const drop = (edge: string) =>
    useEditor
      .getState()
      .edit((old) => withNetwork(old, name, (one) => removeEdges(one, new Set([edge]))));

  return (
    <div className="fields">
      <h3>Inputs</h3>
      {inputs.map((port) => {
        const edges = network.edges.filter(
          (edge) => edge.target === node.id && edge.in === port.name,
        );
        return (
          <div key={port.name} className="property">
            <label htmlFor={`input-${port.name}`}>{port.name}</label>
            <span className="value">
              {(edges.length === 0 || port.variadic) && (
                <select
                  id={`input-${port.name}`}
                  value=""
                  onChange={({ target: { value } }) => {
                    const [source = "", out = "0"] = value.split(" ");
                    connect({ source, out: Number(out), target: node.id, in: port.name });
                  }}
                >
                  <option value="">{port.optional ? "none" : "choose"}</option>
                  {choices.map((choice) => (
                    <option key={choice.value} value={choice.value}>
                      {choice.text}
                    </option>
                  ))}
                </select>
              )}
              {edges.map((edge) => (
                <span key={edge.id} className="row">
                  {named.get(edge.source)}
                  <button
                    className="icon"
                    aria-label={`Disconnect ${named.get(edge.source)} from ${port.name}`}
                    onClick={() => drop(edge.id)}
                  >
                    ×
                  </button>
                </span>
              ))}
            </span>
          </div>
        );
      })}
    </div>
  );
}
