// All candidates of a search, the newest first; those that were not worth a training, too.

import type { Candidate } from "../api/records";
import { count, percent } from "../ui/format";

interface CandidateTableProps {
  candidates: readonly Candidate[];
  front: readonly number[];
  chosen: string | null;
  choose: (number: string) => void;
}

export function CandidateTable({ candidates, front, chosen, choose }: CandidateTableProps) {
  return (
    <div className="scroll candidates">
      <table aria-label="Candidates">
        <thead>
          <tr>
            <th className="number">No.</th>
            <th>Status</th>
            <th className="number">Error</th>
            <th className="number">Multiply-adds</th>
            <th>Edits</th>
          </tr>
        </thead>
        <tbody>
          {[...candidates].reverse().map((one) => (
            <tr
              key={one.number}
              aria-selected={String(one.number) === chosen}
              onClick={() => choose(String(one.number))}
            >
              <td className="number">
                <button className="link" onClick={() => choose(String(one.number))}>
                  {one.number}
                </button>
              </td>
              <td>
                <span className={`status ${one.status}`}>{one.status}</span>{" "}
                {front.includes(one.number) && <span className="tag">front</span>}
              </td>
              <td className="number">{percent(one.error)}</td>
              <td className="number">{count(one.multiply_adds)}</td>
              <td className="muted">{one.reason ?? one.edits.map((edit) => edit.rule).join(", ")}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
