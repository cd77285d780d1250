// The network that is shown: drag, connect, select. Moves become a step of the history when they
// end; until then only the canvas knows of them.

import {
  applyNodeChanges,
  Background,
  Controls,
  MiniMap,
  ReactFlow,
  useReactFlow,
  useStore,
  type Connection as FlowConnection,
  type Edge as FlowEdge,
  type EdgeChange,
  type NodeChange,
} from "@xyflow/react";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState, type DragEvent } from "react";
import { moveNodes, networkOf, withNetwork } from "../graph/document";
import { NODE_WIDTH } from "../graph/layout";
import type { Connection } from "../graph/ports";
import { Empty } from "../ui/parts";
import { useAnalysis } from "./analysis";
import { addAt, connect, connectionRefusal, enter } from "./commands";
import { flowEdges, flowNodes, selectionAfter } from "./flow";
import { useEditingKeys } from "./keys";
import { LayerBox, type LayerFlowNode } from "./LayerBox";
import { DRAG_TYPE } from "./Palette";
import { useDocument, useEditor } from "./store";
import { ViewKeeper } from "./ViewKeeper";

const NODE_TYPES = { layer: LayerBox };
/** From here on only what is seen is in the page. */
const MANY_NODES = 120;
const FAR_ZOOM = 0.4;

function wanted(connection: FlowConnection | FlowEdge): Connection {
  return {
    source: connection.source,
    out: Number(connection.sourceHandle ?? 0),
    target: connection.target,
    in: connection.targetHandle ?? "",
  };
}

export function Canvas() {
  const document = useDocument();
  const layers = useEditor((state) => state.layers);
  const name = useEditor((state) => state.network);
  const selected = useEditor((state) => state.selected);
  const view = useEditor((state) => state.view);
  const network = networkOf(document, name);
  const [nodes, setNodes] = useState<LayerFlowNode[]>(() =>
    flowNodes(document, network, layers, selected, []),
  );
  const [selectedEdges, setSelectedEdges] = useState<ReadonlySet<string>>(new Set());
  const edges = useMemo(() => flowEdges(network, selectedEdges), [network, selectedEdges]);
  const isDragged = useRef(false);
  const { screenToFlowPosition } = useReactFlow();
  const isFar = useStore((state) => state.transform[2] < FAR_ZOOM);
  const isBehind = useAnalysis((state) => state.of !== document && state.error === null);
  useEditingKeys(selectedEdges);

  useLayoutEffect(() => {
    setNodes((old) => flowNodes(document, network, layers, selected, old));
  }, [document, network, layers, selected]);
  useEffect(() => setSelectedEdges(new Set()), [name]);

  const onNodesChange = useCallback((changes: NodeChange<LayerFlowNode>[]) => {
    const { selected: before, select, network: shown, edit } = useEditor.getState();
    const after = selectionAfter(before, changes);
    if (after) select(after);
    const rest = changes.filter((change) => change.type !== "select" && change.type !== "remove");
    if (rest.length === 0) return;
    setNodes((old) => applyNodeChanges(rest, old));
    const moved = new Map<string, { x: number; y: number }>();
    for (const change of rest) {
      if (change.type !== "position") continue;
      if (change.dragging) isDragged.current = true;
      else if (change.position) moved.set(change.id, change.position);
    }
    if (moved.size === 0) return;
    const byKey = !isDragged.current;
    isDragged.current = false;
    edit(
      (old) => {
        const current = networkOf(old, shown);
        const next = moveNodes(current, moved);
        return next === current ? old : withNetwork(old, shown, () => next);
      },
      byKey ? { merge: "move" } : {},
    );
  }, []);

  const onEdgesChange = useCallback((changes: EdgeChange[]) => {
    setSelectedEdges((old) => {
      const next = new Set(old);
      for (const change of changes) {
        if (change.type !== "select") continue;
        if (change.selected) next.add(change.id);
        else next.delete(change.id);
      }
      return next;
    });
  }, []);

  const onDrop = (event: DragEvent) => {
    const [type = "", unit] = event.dataTransfer.getData(DRAG_TYPE).split("\n");
    const layer = layers.get(type);
    if (!layer) return;
    event.preventDefault();
    const { x, y } = screenToFlowPosition({ x: event.clientX, y: event.clientY });
    const at = { x: x - NODE_WIDTH / 2, y: y - 24 };
    addAt(layer, at, unit === undefined ? undefined : { network: unit });
  };

  return (
    <div
      className={isFar ? "canvas far" : "canvas"}
      aria-busy={isBehind}
      onDrop={onDrop}
      onDragOver={(event) => {
        if (event.dataTransfer.types.includes(DRAG_TYPE)) event.preventDefault();
      }}
    >
      {network.nodes.length === 0 && (
        <div className="hint">
          <Empty title="An empty network">
            Drag a layer from the left, or double-click one to place it below the last.
          </Empty>
        </div>
      )}
      <ReactFlow
        key={`${name} ${view}`}
        nodes={nodes}
        edges={edges}
        nodeTypes={NODE_TYPES}
        onNodesChange={onNodesChange}
        onEdgesChange={onEdgesChange}
        onConnect={(connection) => connect(wanted(connection))}
        onConnectEnd={(_, end) => {
          // A connection that is dropped on a wrong input says why it is none.
          if (end.isValid !== false || !end.toHandle || !end.fromHandle) return;
          const isForward = end.fromHandle.type === "source";
          const from = isForward ? end.fromHandle : end.toHandle;
          const to = isForward ? end.toHandle : end.fromHandle;
          if (from.type === to.type) return;
          connect({ source: from.nodeId, out: Number(from.id), target: to.nodeId, in: to.id ?? "" });
        }}
        isValidConnection={(connection) => connectionRefusal(wanted(connection)) === null}
        onNodeDoubleClick={(_, node) => enter(node.id)}
        deleteKeyCode={null}
        multiSelectionKeyCode={["Shift", "Control", "Meta"]}
        selectionKeyCode="Shift"
        minZoom={0.03}
        maxZoom={2}
        connectionRadius={28}
        onlyRenderVisibleElements={network.nodes.length > MANY_NODES}
        ariaLabelConfig={{ "controls.ariaLabel": "View" }}
      >
        <ViewKeeper network={network} />
        <Background gap={20} size={1} />
        <Controls showInteractive={false} />
        <MiniMap
          pannable
          zoomable
          style={{ width: 150, height: 110 }}
          ariaLabel="Overview of the network"
          nodeColor="#8b94a5"
        />
      </ReactFlow>
    </div>
  );
}
