// How long the parts of a training step take, the longest first.

import { useEffect, useState } from "react";
import { address, send } from "../api/http";
import type { Trial } from "../api/records";
import { failed } from "../app/notices";
import { measure } from "../ui/format";
import { Loading } from "../ui/parts";

interface Part {
  name: string;
  ms: number;
}

/** The rows of `profile.csv`: a name, which may have commas, and the time of the only optimizer. */
export function partsOf(text: string): Part[] {
  const rows = text.trim().split("\n").slice(1);
  const parts = rows.map((row) => {
    const cut = row.lastIndexOf(",");
    return { name: row.slice(0, cut).replace(/^"|"$/g, ""), ms: Number(row.slice(cut + 1)) };
  });
  return parts.sort((a, b) => b.ms - a.ms);
}

export function ProfileTable({ trial }: { trial: Trial }) {
  const [parts, setParts] = useState<Part[] | null>(null);
  useEffect(() => {
    send("GET", address(`/trials/${trial.id}/artifacts/profile.csv`))
      .then(async (response) => setParts(partsOf(await response.text())))
      .catch(failed);
  }, [trial.id]);
  if (!parts) return <Loading what="the times" />;
  const most = parts[0]?.ms || 1;
  return (
    <section className="panel scroll">
      <table aria-label="Times">
        <thead>
          <tr>
            <th>Part of a training step</th>
            <th className="number">ms</th>
            <th aria-hidden="true" />
          </tr>
        </thead>
        <tbody>
          {parts.map(({ name, ms }) => (
            <tr key={name}>
              <td className="mono">{name}</td>
              <td className="number">{measure(ms)}</td>
              <td className="share">
                <meter value={ms} max={most} aria-hidden="true" />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
