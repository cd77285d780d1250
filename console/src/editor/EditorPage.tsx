// The page on which networks are drawn.

import { ReactFlowProvider } from "@xyflow/react";
import { useEffect, useLayoutEffect, useState } from "react";
import type { Parts } from "../app/App";
import { attempt } from "../app/notices";
import { navigate, useLocation } from "../app/router";
import { taking } from "../ui/files";
import { Canvas } from "./Canvas";
import { importHere } from "./importing";
import { NetworkBar } from "./NetworkBar";
import { Palette } from "./Palette";
import { Problems } from "./Problems";
import { Properties } from "./Properties";
import { SidePanel } from "./SidePanel";
import { useDocument, useEditor } from "./store";

export function EditorPage({ parts }: { parts: Parts }) {
  useSharedAddress(parts);
  return (
    <ReactFlowProvider>
      <div className="editor">
        <aside className="left" aria-label="Layers and properties">
          <Palette />
          <Properties />
        </aside>
        <div className="centre" {...taking((file) => attempt(() => importHere(file)))}>
          <NetworkBar />
          <Canvas />
          <Problems />
        </div>
        <SidePanel />
      </div>
    </ReactFlowProvider>
  );
}

/** The address names the network and the selected layer: read once, then kept true. */
function useSharedAddress(parts: Parts): void {
  const location = useLocation();
  const { networks } = useDocument();
  const network = useEditor((state) => state.network);
  const selected = useEditor((state) => state.selected);
  const project = useEditor((state) => state.project?.id);
  const [isRead, setRead] = useState(false);

  useLayoutEffect(() => {
    const wanted = parts.network ?? networks[0]?.name ?? "";
    const node = location.searchParams.get("node") ?? undefined;
    if (!isRead && networks.some((other) => other.name === wanted)) {
      if (parts.network !== undefined || node !== undefined) {
        useEditor.getState().show(wanted, node);
      }
    }
    setRead(true);
  }, [isRead, location, networks, parts.network]);

  useEffect(() => {
    if (!isRead) return;
    const [only = null, another] = selected;
    const next = new URL(window.location.href);
    const isMain = network === networks[0]?.name;
    next.pathname = `/p/${project}/edit${isMain ? "" : `/${encodeURIComponent(network)}`}`;
    if (only !== null && another === undefined) next.searchParams.set("node", only);
    else next.searchParams.delete("node");
    navigate(next.pathname + next.search, { replace: true });
  }, [isRead, network, networks, selected, project]);
}
