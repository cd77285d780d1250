// The form of the selected layer: name, properties with what is automatic in grey, sources.

import { useState } from "react";
import type { LayerNode, PropertySchema, PropertyValue } from "../api/network";
import { networkOf, nodeOf, setProperty, withNetwork } from "../graph/document";
import { renameNode } from "../graph/units";
import { Field } from "../ui/parts";
import { useNodeAnalysis } from "./analysis";
import { duplicate, enter, group, remove, unpack } from "./commands";
import { Sources } from "./Sources";
import { currentDocument, useDocument, useEditor } from "./store";
import { ValueField } from "./ValueField";
import { valueText } from "./values";

export function Properties() {
  const network = networkOf(
    useDocument(),
    useEditor((state) => state.network),
  );
  const selected = useEditor((state) => state.selected);
  const [only = ""] = selected;
  const node = selected.size === 1 ? nodeOf(network, only) : undefined;
  return (
    <section className="properties" aria-label="Properties">
      {node ? (
        <NodeProperties key={`${network.name}/${node.id}`} node={node} network={network.name} />
      ) : (
        <SelectionActions nodes={selected} />
      )}
    </section>
  );
}

function SelectionActions({ nodes }: { nodes: ReadonlySet<string> }) {
  if (nodes.size === 0) {
    return (
      <div className="scroll muted">
        <p>Select a layer to see what it is set to.</p>
        <p>
          <kbd>Ctrl+A</kbd> all · <kbd>Shift</kbd> and drag a frame
        </p>
      </div>
    );
  }
  return (
    <>
      <header>
        <h2>{nodes.size} layers</h2>
      </header>
      <div className="scroll">
        <button onClick={group}>Make a unit</button>
        <button onClick={duplicate}>Duplicate</button>
        <button className="danger" onClick={() => remove(nodes, new Set())}>
          Delete
        </button>
      </div>
    </>
  );
}

interface NodeProps {
  node: LayerNode;
  network: string;
}

function NodeProperties({ node, network }: NodeProps) {
  const layer = useEditor((state) => state.layers.get(node.type));
  const units = useDocument().networks.slice(1).map((unit) => unit.name);
  return (
    <>
      <header>
        <div className="row">
          <h2 title={layer?.doc}>{layer?.title ?? node.type}</h2>
          <span className="muted mono">{node.type}</span>
        </div>
        <NameField node={node} network={network} />
      </header>
      <div className="scroll">
        {layer?.properties.map((schema) => (
          <Property
            key={schema.name}
            schema={schema.kind === "network" ? { ...schema, choices: units } : schema}
            node={node}
            network={network}
          />
        ))}
        {!layer && <p className="muted">This layer is kept as it came: nnl does not know it.</p>}
        {node.type === "Unit" && (
          <div className="row">
            <button onClick={() => enter(node.id)}>Open</button>
            <button onClick={unpack}>Unpack</button>
          </div>
        )}
        <Sources node={node} network={network} />
        <Weights id={node.id} network={network} />
      </div>
    </>
  );
}

function NameField({ node, network }: NodeProps) {
  const [typed, setTyped] = useState<string | null>(null);
  const taken = networkOf(useDocument(), network).nodes.some(
    (other) => other.id !== node.id && other.name === typed,
  );
  return (
    <Field label="Name">
      <input
        value={typed ?? node.name}
        spellCheck={false}
        aria-invalid={taken}
        title={taken ? "Another layer is called so." : undefined}
        onBlur={() => setTyped(null)}
        onChange={({ target: { value } }) => {
          setTyped(value);
          const isFree = !networkOf(currentDocument(), network).nodes.some(
            (other) => other.id !== node.id && other.name === value,
          );
          if (value.trim() === "" || !isFree) return;
          useEditor
            .getState()
            .edit((document) => renameNode(document, network, node.id, value), {
              merge: `name ${node.id}`,
            });
        }}
      />
    </Field>
  );
}

function Property({ schema, node, network }: NodeProps & { schema: PropertySchema }) {
  const analysis = useNodeAnalysis(network, node.id);
  const own = node.properties[schema.name];
  const isSet = own !== undefined;
  const isAutomatic = schema.optional && (own ?? schema.default) === null;
  const problem = analysis?.errors.find((error) => error.property === schema.name);
  const id = `property-${schema.name}`;

  const change = (value: PropertyValue | undefined) => {
    // An empty field of a property that has a default is the default.
    const next = value === null && !schema.optional ? undefined : value;
    useEditor
      .getState()
      .edit(
        (document) =>
          withNetwork(document, network, (old) => setProperty(old, node.id, schema.name, next)),
        { merge: `property ${node.id} ${schema.name}` },
      );
  };
  return (
    <div className={isSet ? "property changed" : "property"}>
      <label htmlFor={id} title={schema.doc}>
        {schema.name}
      </label>
      <span className="value">
        <ValueField
          id={id}
          schema={schema}
          value={isAutomatic ? null : (own ?? schema.default)}
          automatic={automaticText(schema, isAutomatic, analysis?.values[schema.name])}
          invalid={problem !== undefined}
          change={change}
        />
        {isSet && !schema.required && (
          <button
            className="icon"
            aria-label={`${schema.name}: back to ${schema.optional ? "automatic" : "the default"}`}
            title={schema.optional ? "Back to automatic" : "Back to the default"}
            onClick={() => change(undefined)}
          >
            ↺
          </button>
        )}
      </span>
      {problem && <span className="problem">{problem.message}</span>}
    </div>
  );
}

function automaticText(
  schema: PropertySchema,
  isAutomatic: boolean,
  value: PropertyValue | undefined,
): string {
  if (!isAutomatic) return schema.required ? "needed" : valueText(schema.default);
  return value === undefined || value === null ? "automatic" : `${valueText(value)} (auto)`;
}

function Weights({ id, network }: { id: string; network: string }) {
  const shapes = Object.entries(useNodeAnalysis(network, id)?.parameter_shapes ?? {});
  if (shapes.length === 0) return null;
  return (
    <div>
      <h3>Parameters</h3>
      {shapes.map(([name, dimensions]) => (
        <div key={name} className="row mono">
          <span>{name}</span>
          <span className="spread" />
          <span className="muted">{dimensions.join(" × ")}</span>
        </div>
      ))}
    </div>
  );
}
