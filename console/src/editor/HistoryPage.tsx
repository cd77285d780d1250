// The versions of a project: what changed between two, and the way back to any.

import { useState } from "react";
import { address, get, send } from "../api/http";
import type { Document, NetworkDiff } from "../api/network";
import type { Version } from "../api/records";
import { useResource } from "../api/resource";
import { attempt, done } from "../app/notices";
import { DiffView } from "../compare/DiffView";
import { moment } from "../ui/format";
import { Empty, Failure, Loading } from "../ui/parts";
import { isUnsaved, useEditor } from "./store";

export default function HistoryPage() {
  const project = useEditor((state) => state.project?.id ?? "");
  const head = useEditor((state) => state.head);
  const unsaved = useEditor(isUnsaved);
  const [note, setNote] = useState("");
  const { data, error, reload } = useResource<{ versions: Version[] }>(
    `/projects/${project}/versions`,
    // Asked again when there is another newest version.
    { head },
  );
  const [chosen, setChosen] = useState<string | null>(null);
  const diff = useResource<NetworkDiff>(chosen && `/projects/${project}/diff`, {
    a: chosen,
    b: head,
  });

  const open = (version: Version) =>
    attempt(async () => {
      useEditor
        .getState()
        .replace(await get<Document>(`/projects/${project}/versions/${version.id}`));
      done("The version is on the canvas now; save it to keep it, undo to go back.");
    });
  const revert = (version: Version) =>
    attempt(async () => {
      await send("POST", address(`/projects/${project}/revert`), {
        body: { version: version.id },
        headers: { "If-Match": `"${head}"` },
      });
      await useEditor.getState().takeTheirs();
      done("The old version is the newest again; undo brings back what was on the canvas.");
    });
  const keep = () =>
    attempt(async () => {
      if (await useEditor.getState().save({ note })) setNote("");
    });

  return (
    <div className="page">
      <div className="page-title">
        <h1>Versions</h1>
      </div>
      <form
        className="row"
        onSubmit={(event) => {
          event.preventDefault();
          keep();
        }}
      >
        <input
          aria-label="Note"
          placeholder="What is new in it"
          value={note}
          onChange={(event) => setNote(event.target.value)}
        />
        <button className="primary changes" disabled={!unsaved}>
          Save as a version
        </button>
      </form>
      {error && <Failure error={error} retry={reload} />}
      {!data && !error && <Loading what="versions" />}
      <ul className="lines">
        {data?.versions.map((version, index) => (
          <li key={version.id}>
            <span>{moment(version.created)}</span>
            <span className="muted mono">{version.id.slice(0, 10)}</span>
            <span className="muted">{version.note}</span>
            {version.trials ? <span className="badge">{version.trials} trials</span> : null}
            <span className="spread" />
            {index === 0 ? (
              <span className="muted">newest</span>
            ) : (
              <>
                <button
                  aria-pressed={chosen === version.id}
                  onClick={() => setChosen(chosen === version.id ? null : version.id)}
                >
                  What changed since
                </button>
                <button onClick={() => open(version)}>Open</button>
                <button className="changes" onClick={() => revert(version)}>Go back to it</button>
              </>
            )}
          </li>
        ))}
      </ul>
      {data?.versions.length === 0 && <Empty title="Nothing was saved yet" />}
      {diff.error && <Failure error={diff.error} />}
      {chosen && diff.data && <DiffView diff={diff.data} />}
    </div>
  );
}
