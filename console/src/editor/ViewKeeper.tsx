// What part of the network is seen: all of it where it stays readable, else its beginning; and
// always what was selected elsewhere (a problem, a search).

import { useReactFlow, useStoreApi } from "@xyflow/react";
import { useEffect, useRef } from "react";
import type { Network } from "../api/network";
import { NODE_HEIGHT, NODE_WIDTH } from "../graph/layout";
import { useEditor } from "./store";

const READABLE_ZOOM = 0.6;
const MARGIN = 40;

export function ViewKeeper({ network }: { network: Network }) {
  const flow = useReactFlow();
  const store = useStoreApi();
  const latest = useRef(network);
  latest.current = network;
  const [only = null, another] = useEditor((state) => state.selected);

  useEffect(() => {
    const { nodes } = latest.current;
    const { width, height } = store.getState();
    if (nodes.length === 0 || width === 0) return;
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
    const at = { x: node.x * zoom + x, y: node.y * zoom + y };
    const isSeen =
      at.x > 0 && at.y > 0 && at.x + NODE_WIDTH * zoom < width && at.y + NODE_HEIGHT * zoom < height;
    if (isSeen || width === 0) return;
    void flow.setCenter(node.x + NODE_WIDTH / 2, node.y + NODE_HEIGHT / 2, {
      zoom: Math.max(zoom, READABLE_ZOOM),
    });
  }, [flow, store, only, another]);

  return null;
}
