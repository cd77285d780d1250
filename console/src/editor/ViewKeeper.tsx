// What part of the network is seen: all of it where it stays readable, else its beginning; and
// always what was selected elsewhere (a problem, a search).

import { useReactFlow, useStoreApi } from "@xyflow/react";
import { useEffect, useRef } from "react";
import type { Network } from "../api/network";
import { NODE_HEIGHT, NODE_WIDTH } from "../graph/layout";
import { useEditor } from "./store";

const READABLE_ZOOM = 0.6;
const MARGIN = 40;

/** How far something at `start` has to move so that all of it lies between 0 and `end`. */
function missing(start: number, size: number, end: number): number {
  if (start < 0) return -start;
  return Math.min(0, end - start - size);
}

export function ViewKeeper({ network }: { network: Network }) {
  const flow = useReactFlow();
  const store = useStoreApi();
  const latest = useRef(network);
  latest.current = network;
  const [only = null, another] = useEditor((state) => state.selected);

  useEffect(() => {
    const { nodes } = latest.current;
    const { width, height } = store.getState();
    if (width === 0) return;
    if (nodes.length === 0) {
      // The first layer that is appended stands at the beginning.
      void flow.setViewport({ zoom: 1, x: (width - NODE_WIDTH) / 2, y: MARGIN });
      return;
    }
    const left = Math.min(...nodes.map((node) => node.x));
    const right = Math.max(...nodes.map((node) => node.x)) + NODE_WIDTH;
    const top = Math.min(...nodes.map((node) => node.y));
    const bottom = Math.max(...nodes.map((node) => node.y)) + NODE_HEIGHT;
    const fits = Math.min(
      (width - 2 * MARGIN) / (right - left),
      (height - 2 * MARGIN) / (bottom - top),
    );
    const zoom = Math.min(1, Math.max(READABLE_ZOOM, fits));
    const middle = bottom - top < height / zoom ? (height - (bottom - top) * zoom) / 2 : MARGIN;
    void flow.setViewport({
      zoom,
      x: width / 2 - ((left + right) / 2) * zoom,
      y: middle - top * zoom,
    });
  }, [flow, store]);

  useEffect(() => {
    if (only === null || another !== undefined) return;
    const node = latest.current.nodes.find((other) => other.id === only);
    if (!node) return;
    const { width, height, transform } = store.getState();
    const [x, y, zoom] = transform;
    const dx = missing(node.x * zoom + x, NODE_WIDTH * zoom, width);
    const dy = missing(node.y * zoom + y, NODE_HEIGHT * zoom, height);
    // What is under the pointer is seen, and must not move away from it.
    const pointed = store.getState().domNode?.querySelector(`.react-flow__node[data-id="${only}"]:hover`);
    if (width === 0 || pointed || (dx === 0 && dy === 0)) return;
    const isNear = Math.abs(dx) <= NODE_WIDTH * zoom && Math.abs(dy) <= NODE_HEIGHT * zoom;
    if (isNear && zoom >= READABLE_ZOOM) {
      void flow.setViewport({ zoom, x: x + dx, y: y + dy });
    } else {
      void flow.setCenter(node.x + NODE_WIDTH / 2, node.y + NODE_HEIGHT / 2, {
        zoom: Math.max(zoom, READABLE_ZOOM),
      });
    }
  }, [flow, store, only, another]);

  return null;
}
