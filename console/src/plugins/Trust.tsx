// A plug-in is a program: it runs only after somebody has said that it may.

import { post } from "../api/http";
import type { Plugin } from "../api/records";
import { attempt } from "../app/notices";

export function Trust({ plugin, trusted }: { plugin: Plugin; trusted: () => void }) {
  const trust = async () => {
    await post(`/plugins/${plugin.id}/trust`, { sha256: plugin.sha256 });
    trusted();
  };
  return (
    <div className="failure" role="note">
      <strong>This plug-in is not trusted yet.</strong>
      <p>
        It is a program and can do what you can do: read and delete files, use the network. Look into{" "}
        <span className="mono">{plugin.file}</span> before. When the file changes, you are asked again.
      </p>
      <button className="changes" onClick={() => attempt(trust)}>Trust this file</button>
    </div>
  );
}
