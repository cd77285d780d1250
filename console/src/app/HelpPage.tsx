// Keys, and what the console runs on.

import type { SystemInfo, Session } from "../api/records";
import { useResource } from "../api/resource";
import { bytes } from "../ui/format";

const KEYS = [
  ["Ctrl+S", "Save"],
  ["Ctrl+Z, Ctrl+Shift+Z", "Undo, redo; everything can be undone"],
  ["Ctrl+C, Ctrl+X, Ctrl+V", "Copy, cut, paste; also into other projects and tabs"],
  ["Ctrl+D", "Duplicate what is selected"],
  ["Ctrl+A, Escape", "Select all, nothing"],
  ["Delete", "Delete layers and connections"],
  ["Ctrl+G, Ctrl+Shift+G", "Make a unit of the selected layers, unpack it"],
  ["Tab, Enter, arrows", "Go from layer to layer, select, move"],
  ["Enter in the palette", "Put the layer below the selected one and connect it"],
] as const;

export default function HelpPage() {
  const system = useResource<SystemInfo>("/system").data;
  const session = useResource<Session>("/session").data;
  return (
    <div className="page">
      <h1>Help</h1>
      <section className="panel group" aria-label="Keys">
        <h2>Keys</h2>
        <table>
          <tbody>
            {KEYS.map(([keys, what]) => (
              <tr key={keys}>
                <td>
                  <kbd>{keys}</kbd>
                </td>
                <td>{what}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      {system && session && (
        <section className="panel group" aria-label="This console">
          <h2>This console</h2>
          <dl className="facts">
            <dt>Folder</dt>
            <dd className="mono">{session.folder}</dd>
            {Object.entries(system.versions).map(([name, version]) => (
              <Fact key={name} name={name} value={version} />
            ))}
            <Fact name="Platform" value={system.platform} />
            <Fact name="Processors" value={String(system.cpus)} />
            <Fact name="Memory" value={bytes(system.memory_bytes)} />
            <Fact name="Runs on" value={system.contexts.join(", ")} />
          </dl>
        </section>
      )}
    </div>
  );
}

function Fact({ name, value }: { name: string; value: string }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{value}</dd>
    </>
  );
}
