// The networks of the document as tabs, and what can be done with the one that is shown.

import { useState } from "react";
import { address, send } from "../api/http";
import type { ImportReport } from "../api/network";
import { NameDialog, NETWORK_FILES } from "../app/ProjectList";
import { attempt, done } from "../app/notices";
import { renameNetwork } from "../graph/units";
import { chooseFile, saveAs, upload } from "../ui/files";
import { Dialog, Menu, Tabs } from "../ui/parts";
import { useProblems } from "./analysis";
import { arrangeAll, duplicate, group, selectAll, unpack } from "./commands";
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
  const { project, weightsFrom } = useEditor.getState();
  const name = project?.name ?? "network";
  const response = await send("POST", address("/export", { format }), {
    body: { document: currentDocument(), weights_from: weightsFrom, name },
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
  const [report, setReport] = useState<ImportReport | null>(null);

  const importFile = () =>
    attempt(async () => {
      const file = await chooseFile(NETWORK_FILES);
      if (!file) return;
      const answer = await upload<ImportReport>("/import", file);
      useEditor
        .getState()
        .replace(
          { ...answer.document, config: currentDocument().config },
          answer.weights === null ? null : { blob: answer.weights },
        );
      if (answer.report.length > 0) setReport(answer);
    });

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
          { label: "Import …", act: importFile },
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
      {report && (
        <Dialog title={`Imported ${report.name}`} close={() => setReport(null)}>
          <ul className="fields">
            {report.report.map((line, index) => (
              <li key={index} className={line.severity === "error" ? "bad" : "warn"}>
                {line.message}
              </li>
            ))}
          </ul>
        </Dialog>
      )}
    </div>
  );
}
