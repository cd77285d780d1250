// What a project has to say on whichever of its pages one is.

import { attempt } from "../app/notices";
import { Dialog } from "../ui/parts";
import { useImported } from "./importing";
import { useEditor } from "./store";

export function ConflictDialog() {
  const conflict = useEditor((state) => state.conflict);
  const { save, takeTheirs } = useEditor.getState();
  if (conflict === null) return null;
  const close = () => useEditor.setState({ conflict: null });
  return (
    <Dialog title="Saved elsewhere meanwhile" close={close}>
      <p>
        Another tab or user has saved this project since you opened it. Both versions can be kept:
        whichever is not taken stays in the list of versions, or on this page's undo list.
      </p>
      <footer>
        <button onClick={close}>Go on editing</button>
        <button onClick={() => attempt(takeTheirs)}>Take theirs</button>
        <button className="primary" onClick={() => attempt(() => save({ over: conflict }))}>
          Save mine over it
        </button>
      </footer>
    </Dialog>
  );
}

/** What of a file that was imported is not as it was there. */
export function ImportDialog() {
  const found = useImported((state) => state.shown);
  if (!found) return null;
  return (
    <Dialog
      title={`Imported ${found.name}`}
      close={() => useImported.setState({ shown: null })}
    >
      <ul className="fields">
        {found.report.map((line, index) => (
          <li key={index} className={line.severity === "error" ? "bad" : "warn"}>
            {line.message}
          </li>
        ))}
      </ul>
    </Dialog>
  );
}
