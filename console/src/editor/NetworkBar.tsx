// The networks of the document as tabs, and what can be done with the one that is shown.

import { useState } from "react";
import { address, send } from "../api/http";
import { NameDialog } from "../app/ProjectList";
import { attempt, done } from "../app/notices";
import { renameNetwork } from "../graph/units";
import { saveAs } from "../ui/files";
import { Menu, Tabs } from "../ui/parts";
import { useProblems } from "./analysis";
import { arrangeAll, duplicate, group, selectAll, unpack } from "./commands";
import { importHere } from "./importing";
import { currentDocument, useDocument, useEditor } from "./store";

const FORMATS: [string, string, string][] = [
  ["NNabla text (.nntxt)", "nntxt", "nntxt"],
  ["NNabla with weights (.nnp)", "nnp", "nnp"],
  ["ONNX", "onnx", "onnx"],
  ["nnl program (.nnlp)", "nnlp", "nnlp"],
  ["Python code", "python", "py"],
  ["Page (HTML)", "html", "html"],
];

async function exportAs(format: string, ending: string): Promise<void> {
  const document = currentDocument();
  const name = useEditor.getState().project?.name ?? "network";
  const response = await send("POST", address("/export", { format }), {
    body: { document, name },
  });
  saveAs(await response.blob(), `${name}.${ending}`);
  done(`Exported as ${name}.${ending}.`);
}

export function NetworkBar() {
  const { networks } = useDocument();
  const network = useEditor((state) => state.network);
  const { show, edit } = useEditor.getState();
  const problems = useProblems();
  const [isNaming, setNaming] = useState(false);

  return (
    <div className="network-bar">
      <Tabs
        label="Networks"
        current={network}
        choose={(name) => show(name)}
        tabs={networks.map(({ name }) => ({
          id: name,
          title: name,
          count: problems.filter(
            (problem) => problem.network === name && problem.severity === "error" && problem.code !== "upstream",
          ).length,
        }))}
      />
      <Menu
        label="Network"
        items={[
          { label: "Arrange", act: arrangeAll },
          { label: "Select all", keys: "Ctrl+A", act: selectAll },
          { label: "Duplicate", keys: "Ctrl+D", act: duplicate },
          { label: "Make a unit", keys: "Ctrl+G", act: group },
          { label: "Unpack the unit", keys: "Ctrl+Shift+G", act: unpack },
          { label: "Rename this network", act: () => setNaming(true) },
        ]}
      />
      <Menu
        label="File"
        items={[
          { label: "Import …", act: () => attempt(importHere) },
          ...FORMATS.map(([label, format, ending]) => ({
            label: `Export: ${label}`,
            act: () => attempt(() => exportAs(format, ending)),
          })),
        ]}
      />
      {isNaming && (
        <NameDialog
          title="Rename the network"
          value={network}
          close={() => setNaming(false)}
          accept={(to) => {
            setNaming(false);
            if (networks.some((other) => other.name === to)) return;
            edit((document) => renameNetwork(document, network, to), { network: to });
          }}
        />
      )}
    </div>
  );
}
