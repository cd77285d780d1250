// What the user does in the editor, from wherever it is asked for: key, menu, button.

import { ApiError } from "../api/http";
import type { LayerSchema, Problem, Properties } from "../api/network";
import { attempt, done, failed } from "../app/notices";
import { freshIds, networkOf, nodeOf, removeEdges, removeNodes, withNetwork } from "../graph/document";
import { applyEdits } from "../graph/fixes";
import { arrange } from "../graph/layout";
import * as place from "../graph/place";
import { portsOf, refusal, type Connection } from "../graph/ports";
import { makeUnit, unitRefusal, unpackUnit } from "../graph/units";
import { currentDocument, useEditor } from "./store";

const editor = () => useEditor.getState();
const network = () => networkOf(currentDocument(), editor().network);

/** A refusal is shown like an error of the server. */
function refuse(message: string): void {
  failed(new ApiError(0, { code: "refused", message, hint: null, where: null }));
}

function take(placed: place.Placed, into = editor().network): void {
  editor().edit(() => placed.document, { select: placed.added, network: into });
}

export function addAt(layer: LayerSchema, at: { x: number; y: number }, properties?: Properties): void {
  take(place.addLayer(currentDocument(), editor().network, layer, at, properties));
}

/** Below the selected layer, or the lowest, and connected to it. */
export function append(layer: LayerSchema, properties?: Properties): void {
  const { selected, layers } = editor();
  const [after = null] = selected;
  take(
    place.appendLayer(currentDocument(), editor().network, layers, layer, after, properties),
  );
}

export function connectionRefusal(wanted: Connection): string | null {
  const target = nodeOf(network(), wanted.target);
  if (!target) return "There is no such layer.";
  return refusal(network(), portsOf(currentDocument(), editor().layers, network(), target), wanted);
}

export function connect(wanted: Connection): void {
  const reason = connectionRefusal(wanted);
  if (reason !== null) return refuse(reason);
  const [id = ""] = freshIds(currentDocument(), "e", 1);
  editor().edit((document) =>
    withNetwork(document, editor().network, (old) => ({
      ...old,
      edges: [...old.edges, { id, ...wanted }],
    })),
  );
}

export function remove(nodes: ReadonlySet<string>, edges: ReadonlySet<string>): void {
  if (nodes.size === 0 && edges.size === 0) return;
  editor().edit(
    (document) =>
      withNetwork(document, editor().network, (old) => removeEdges(removeNodes(old, nodes), edges)),
    { select: [] },
  );
}

export function copyText(): string | null {
  const { selected } = editor();
  if (selected.size === 0) return null;
  return place.fragmentText(place.copyNodes(currentDocument(), editor().network, selected));
}

let pastes = 0;

export function paste(text: string): boolean {
  const fragment = place.fragmentFrom(text);
  if (!fragment) return false;
  pastes += 1;
  const offset = { x: 32 * pastes, y: 32 * pastes };
  take(place.pasteNodes(currentDocument(), editor().network, fragment, offset));
  return true;
}

export function forgetPastes(): void {
  pastes = 0;
}

export function duplicate(): void {
  const { selected } = editor();
  const fragment = place.copyNodes(currentDocument(), editor().network, selected);
  if (fragment.nodes.length === 0) return;
  take(place.pasteNodes(currentDocument(), editor().network, fragment, { x: 32, y: 32 }));
}

export function selectAll(): void {
  editor().select(network().nodes.map((node) => node.id));
}

export function group(): void {
  const { selected, layers } = editor();
  const reason = unitRefusal(network(), selected);
  if (reason !== null) return refuse(reason);
  take(makeUnit(currentDocument(), editor().network, selected, layers));
}

export function unpack(): void {
  const units = network().nodes.filter(
    (node) => editor().selected.has(node.id) && node.type === "Unit",
  );
  const [unit] = units;
  if (!unit) return refuse("Select a unit to unpack it.");
  take(unpackUnit(currentDocument(), editor().network, unit.id));
}

/** Opens the network of the selected unit. */
export function enter(id: string): void {
  const unit = nodeOf(network(), id)?.properties.network;
  if (typeof unit === "string") editor().show(unit);
}

export function arrangeAll(): void {
  editor().edit((document) => withNetwork(document, editor().network, arrange));
  useEditor.setState({ view: editor().view + 1 });
}

export function fix(problem: Problem): void {
  const edits = problem.fix?.edits;
  if (!edits) return;
  const added = edits.flatMap((edit) => (edit.op === "add_node" ? [edit.value.id] : []));
  const select = added.slice(-1);
  editor().edit((document) => applyEdits(document, edits), added.length > 0 ? { select } : {});
}

export function save(): void {
  attempt(async () => {
    if (await editor().save()) done("Saved.");
  });
}
